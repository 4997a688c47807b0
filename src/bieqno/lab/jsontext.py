"""Text that any reader of JSON takes: Python's own writer would let NaN and infinities through."""

import json
import math
from collections.abc import Mapping
from typing import Any


def known_to_json(content: Any) -> Any:
    """The same content with null where a number is not finite, which JSON does not know.

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
    """The text of a file of numbers and settings.

    Example:
        >>> print(json_text({"rmse": float("inf")}), end="")
        {
         "rmse": null
        }
    """
    return json.dumps(known_to_json(content), indent=1, allow_nan=False) + "\n"
