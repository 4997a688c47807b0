"""The settings of a regressor, checked."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_SWITCHES = ("set_interaction", "same_units", "fine_tune")


@dataclass(frozen=True)
class Settings:
    """The settings of `GGPRegressor` that shape the process and its training, as plain Python numbers."""

    noise: float | None
    rank: int
    width: int
    depth: int
    members: int
    set_interaction: bool
    targets: int | None
    observations: int | None
    same_units: bool
    fine_tune: bool
    max_steps: int
    batch_size: int
    patience: int
    learning_rate: float

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> "Settings":
        """Take the settings from a dictionary; NumPy's numbers are welcome.

        Raises:
            ValueError: if one is of the wrong kind or out of range.
        """
        return cls(**{field.name: _checked(field.name, given[field.name]) for field in fields(cls)})


def _checked(name: str, value: Any) -> Any:
    optional = name in {"noise", "targets", "observations"}
    if value is None and optional:
        return None
    try:
        if name in _SWITCHES:
            return bool(operator.index(value))
        if name in {"noise", "learning_rate"}:
            number = float(value)
            if not math.isfinite(number) or number < 0 or (name == "learning_rate" and number == 0):
                raise ValueError
            return number
        count = operator.index(value)
        if count < 1:
            raise ValueError
        return count
    except (TypeError, ValueError) as error:
        kind = {
            "noise": "a number that is not negative", "learning_rate": "a positive number",
            **dict.fromkeys(_SWITCHES, "True or False"),
        }.get(name, "a whole number of at least 1")  # fmt: skip
        raise ValueError(f"{name} must be {kind}{' or None' * optional}, got {value!r}") from error
