"""Wrong names: what was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A sentence that names the nearest right name, or all of them where none is near.

    Example:
        >>> did_you_mean("hight", ["height", "width"])
        "did you mean 'height'?"
        >>> did_you_mean("z", ["height", "width"])
        'there are height, width'
    """
    known = [str(other) for other in names]
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    if near:
        return f"did you mean {lower[near[0]]!r}?"
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"there are {shown}" if known else "there are none"
