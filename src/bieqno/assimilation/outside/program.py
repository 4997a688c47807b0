"""One member by a program of any language, which reads and writes files, or by a class with the Basic Model Interface.

`Program` reads a state from a file and writes the next to another; `BMIModel` is that of Hutton, Piper and Tucker (2020).
"""

import shlex
import string
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bieqno.persistence.hdf5 import check_heaps

PLACES = ("state_in", "state_out", "inputs", "seed", "member", "window", "folder")
_ENDINGS = {"binary": "bin", "netcdf": "nc"}


@dataclass(frozen=True)
class Program:
    """Run one member by a command such as ``./my_model {state_in} {state_out} {inputs} {seed}``.

    Args:
        command: words with places to fill: `state_in`, `state_out`, `inputs` and `folder` are paths, `seed`, `member` and
            `window` whole numbers. Where a window has no inputs, `inputs` is ``-``. No shell reads it.
        exchange: ``binary``, plain 64-bit numbers of this machine and no header, inputs in the order of their names; or
            ``netcdf``, a variable `state` by `n`, inputs under their names.
        cwd: where the command is run; a relative path of the program begins there.
        timeout: seconds after which the program is killed.

    Example:
        >>> import tempfile
        >>> copy = Program("cp {state_in} {state_out}")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     copy(np.ones(2), inputs=None, member=0, window=0, seed=1, folder=folder)
        array([1., 1.])
    """

    command: str
    exchange: str = "binary"
    cwd: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.exchange not in _ENDINGS:
            raise ValueError(f"files are exchanged as {' or '.join(_ENDINGS)}, got exchange={self.exchange!r}")
        try:
            named = {name for word in shlex.split(self.command) for _, name, _, _ in string.Formatter().parse(word)}
        except ValueError as error:
            raise ValueError(f"the command cannot be read ({error}): {self.command!r}") from error
        for name in sorted(named - {None, *PLACES}, key=str):
            raise ValueError(f"a command has the places {', '.join(PLACES)}, not {{{name}}}: {self.command!r}")
        if not {"state_in", "state_out"} <= named:
            raise ValueError(f"a command names {{state_in}} and {{state_out}}, got {self.command!r}")

    def __call__(
        self, state: Float[np.ndarray, "n"], *, inputs: Any, member: int, window: int, seed: int, folder: str | Path
    ) -> Float[np.ndarray, "n"]:
        """Write the state, run the program, read the state one window later."""
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        ending = _ENDINGS[self.exchange]
        state_in, state_out = folder / f"state_in.{ending}", folder / f"state_out.{ending}"
        given: str | Path = "-"
        self._write(state_in, {"state": state})
        if inputs is not None:
            given = folder / f"inputs.{ending}"
            self._write(given, _named(inputs))
        places = {"state_in": state_in, "state_out": state_out, "inputs": given, "folder": folder}
        words = [word.format(**places, seed=seed, member=member, window=window) for word in shlex.split(self.command)]
        self._run(words, folder / "log.txt")
        return self._read(state_out, len(state))

    def _run(self, words: list[str], log: Path) -> None:
        try:
            # To a file, not through a pipe: what the program may have started itself cannot keep us waiting.
            with log.open("wb") as stream:
                done = subprocess.run(
                    words, cwd=self.cwd, timeout=self.timeout, check=False,
                    stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{words[0]} was killed after {self.timeout} seconds") from error
        if done.returncode:
            said = log.read_text(errors="replace").strip().splitlines()
            how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            raise RuntimeError(f"{words[0]}: {how}" + (f", {said[-1]}" if said else ""))

    def _write(self, path: Path, arrays: dict[str, Any]) -> None:
        if self.exchange == "binary":
            path.write_bytes(b"".join(np.asarray(value, np.float64).tobytes() for value in arrays.values()))
            return
        with _h5netcdf().File(path, "w") as file:
            for name, value in arrays.items():
                array = np.atleast_1d(np.asarray(value, np.float64))
                axes = ["n"] if name == "state" else [f"{name}_{axis}" for axis in range(array.ndim)]
                for axis, size in zip(axes, array.shape, strict=True):
                    file.dimensions[axis] = size
                file.create_variable(name, tuple(axes), data=array)

    def _read(self, path: Path, size: int) -> Float[np.ndarray, "n"]:
        if not path.exists():
            raise ValueError(f"the program wrote no file {path.name}")
        if self.exchange == "binary":
            if path.stat().st_size != 8 * size:
                raise ValueError(f"{path.name} should hold {size} numbers of 64 bits, got {path.stat().st_size} bytes")
            return np.fromfile(path, np.float64)
        check_heaps(path)
        with _h5netcdf().File(path, "r") as file:
            if "state" not in file.variables or file.variables["state"].shape != (size,):
                found = {name: variable.shape for name, variable in file.variables.items()}
                raise ValueError(f"{path.name} should hold a variable 'state' of shape ({size},), got {found}")
            return np.asarray(file.variables["state"][:], np.float64)


def _named(inputs: Any) -> dict[str, Any]:
    """Return inputs by name: those of a mapping by its keys, an array as `inputs`, others by their place in the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    return {jax.tree_util.keystr(path, simple=True, separator="_") or "inputs": leaf for path, leaf in leaves}


def _h5netcdf() -> Any:
    try:
        import h5netcdf
    except ImportError as error:
        raise ImportError('files of netCDF need h5netcdf: pip install "bieqno[netcdf]"') from error
    return h5netcdf


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
            sizes = [int(model.get_var_nbytes(name) // model.get_var_itemsize(name)) for name in self.variables]
            kinds = [model.get_var_type(name) for name in self.variables]
            parts = [np.empty(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
            if sum(part.size for part in parts) != state.size:
                found = ", ".join(f"{name} {size}" for name, size in zip(self.variables, sizes, strict=True))
                raise ValueError(f"the state has {state.size} numbers, its variables have other sizes: {found}")
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
            with suppress(Exception):  # the earlier error is the one to report
                model.finalize()
        return np.concatenate([part.astype(np.float64) for part in parts])
