"""`BMIModel`: one member by a model with the Basic Model Interface (Hutton, Piper and Tucker 2020), given by its class."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class BMIModel:
    """Run one member by `initialize`, `set_value`, `update`, `get_value` and `finalize` of a BMI class.

    Every call makes a model of its own, at the start time of its configuration: a model that depends on time takes it as
    an input. The state is made of some variables, one after the other. Inputs are a mapping from variables to values; a
    model with an input variable `seed` is given the seed.

    Args:
        model: the class, or any function that returns a model; processes have to be able to import it.
        config: its configuration file.
        variables: names of the variables that make up the state.
        window: how far to update, in the model's own time; None for one of its own steps.
    """

    model: Any
    config: str
    variables: tuple[str, ...]
    window: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.model) or not self.variables:
            raise ValueError(f"a BMI model needs its class and the variables of the state, got {self}")

    def __call__(
        self, state: Float[np.ndarray, "n"], *, inputs: Any, member: int, window: int, seed: int, folder: str | Path
    ) -> Float[np.ndarray, "n"]:
        """Set the state, update, get the state."""
        if inputs is not None and not isinstance(inputs, Mapping):
            raise ValueError(f"inputs of a BMI model are named, as in {{'rain': ...}}, got {type(inputs).__name__}")
        model = self.model()
        model.initialize(self.config)
        try:
            parts = [np.empty(self._size(model, name), model.get_var_type(name)) for name in self.variables]
            if sum(part.size for part in parts) != state.size:
                sizes = ", ".join(f"{name} {part.size}" for name, part in zip(self.variables, parts, strict=True))
                raise ValueError(f"the state has {state.size} numbers, its variables have other sizes: {sizes}")
            begin = 0
            for name, part in zip(self.variables, parts, strict=True):
                model.set_value(name, state[begin : begin + part.size].astype(part.dtype))
                begin += part.size
            for name, value in (inputs or {}).items():
                model.set_value(name, np.atleast_1d(np.asarray(value)).ravel())
            if "seed" in model.get_input_var_names():
                model.set_value("seed", np.array([seed]))
            if self.window is None:
                model.update()
            else:
                model.update_until(model.get_current_time() + self.window)
            for name, part in zip(self.variables, parts, strict=True):
                model.get_value(name, part)
        finally:
            with suppress(Exception):  # what went wrong before is what is to be told
                model.finalize()
        return np.concatenate([part.astype(np.float64) for part in parts])

    def _size(self, model: Any, name: str) -> int:
        return int(model.get_var_nbytes(name) // model.get_var_itemsize(name))
