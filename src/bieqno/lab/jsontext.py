"""JSON that every reader takes: NaN and infinities, which Python would write, become null."""

import json
import math
from collections.abc import Mapping
from typing import Any


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
