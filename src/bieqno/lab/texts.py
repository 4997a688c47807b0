"""Texts shared by commands and files: suggestions for wrong names, and JSON without NaN, which not every reader takes."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a phrase with the nearest right name, whatever its case, or with the right names where none is near.

    Example:
        >>> did_you_mean("hight", ["height", "width"]), did_you_mean("z", ["height", "width"])
        ("did you mean 'height'?", 'there are height, width')
    """
    known = {str(other).lower(): str(other) for other in names}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        return f"did you mean {known[near[0]]!r}?"
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return f"there are {', '.join(list(known.values())[:20])}{more}" if known else "there are none"


def known_to_json(content: Any) -> Any:
    """Return the same content with None where a number is not finite.

    Example:
        >>> known_to_json({"rmse": [0.5, float("nan")], "sizes": (2, 4)})
        {'rmse': [0.5, None], 'sizes': [2, 4]}
    """
    if isinstance(content, Mapping):
        return {name: known_to_json(item) for name, item in content.items()}
    if isinstance(content, list | tuple):
        return [known_to_json(item) for item in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def json_text(content: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(known_to_json(content), indent=1, allow_nan=False) + "\n"
