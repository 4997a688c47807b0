"""Names that were mistyped: which one was meant."""

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What to tell somebody who asked for a name that is not there: the nearest right one, and all of them.

    Example:
        >>> unknown("experiment", "lorenz-63", ["lorenz63", "step-1d"])
        "expected an experiment of lorenz63, step-1d, got 'lorenz-63' (did you mean 'lorenz63'?)"
    """
    names = list(known)
    article = "an" if what[0] in "aeiou" else "a"
    # Case is the commonest mistake, and difflib takes it for a difference.
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    hint = f" (did you mean {folded[near[0]]!r}?)" if near else ""
    return f"expected {article} {what} of {', '.join(names)}, got {name!r}{hint}"
