"""Lorenz-96 of liblorenz96.so behind the Basic Model Interface: what bieqno calls of it, and no more."""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

_DOUBLES = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")


class Lorenz96:
    """A model with a time step of its own; see https://bmi.csdms.io for what each method is to do."""

    def initialize(self, config: str) -> None:
        """Read the configuration and load the library beside this file."""
        self.settings = json.loads(Path(config).read_text())
        self.values: dict[str, Any] = {"state": np.zeros(self.settings["size"]), "seed": np.zeros(1, np.int64)}
        self.time = 0.0
        self.run = ctypes.CDLL(str(Path(__file__).with_name("liblorenz96.so"))).lorenz96_run
        double, long = ctypes.c_double, ctypes.c_long
        self.run.argtypes = [_DOUBLES, long, double, double, long, double, ctypes.c_uint64]

    def update(self) -> None:
        """Take one step."""
        self._advance(1)

    def update_until(self, time: float) -> None:
        """Take steps until a time."""
        self._advance(round((time - self.time) / self.settings["step"]))

    def _advance(self, steps: int) -> None:
        s, z = self.settings, self.values["state"]
        self.run(z, len(z), s["forcing"], s["step"], steps, s["noise"], int(self.values["seed"][0]))
        self.time += steps * s["step"]

    def finalize(self) -> None:
        """Free what was taken."""

    def get_current_time(self) -> float:
        """Return the time that the model has reached."""
        return self.time

    def get_input_var_names(self) -> tuple[str, ...]:
        """Return what can be set."""
        return tuple(self.values)

    def get_var_type(self, name: str) -> str:
        """Return the type of a variable's numbers."""
        return str(self.values[name].dtype)

    def get_var_itemsize(self, name: str) -> int:
        """Return the bytes of one number of a variable."""
        return int(self.values[name].itemsize)

    def get_var_nbytes(self, name: str) -> int:
        """Return the bytes of a variable."""
        return int(self.values[name].nbytes)

    def get_value(self, name: str, dest: Any) -> Any:
        """Copy a variable."""
        dest[:] = self.values[name]
        return dest

    def set_value(self, name: str, src: Any) -> None:
        """Set a variable."""
        self.values[name][:] = src
