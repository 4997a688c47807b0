"""Suggestions for wrong names."""

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a phrase with the nearest right name, or with all of them where none is near.

    Example:
        >>> did_you_mean("hight", ["height", "width"])
        "did you mean 'height'?"
        >>> did_you_mean("z", ["height", "width"])
        'there are height, width'
    """
    known = [str(other) for other in names]
    near = _nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"there are {shown}" if known else "there are none"


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Return the error message for an unknown name: all right ones, and the nearest.

    Example:
        >>> unknown("experiment", "lorenz-63", ["lorenz63", "step-1d"])
        "expected an experiment of lorenz63, step-1d, got 'lorenz-63' (did you mean 'lorenz63'?)"
    """
    known = list(names)
    near = _nearest(name, known)
    article = "an" if what[0] in "aeiou" else "a"
    hint = "" if near is None else f" (did you mean {near!r}?)"
    return f"expected {article} {what} of {', '.join(known)}, got {name!r}{hint}"


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the nearest name whatever the case of its letters; None if nothing is near."""
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return lower[near[0]] if near else None
