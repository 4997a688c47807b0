"""Finished cases of a run, kept on disk while it goes on: what `--resume` need not compute again.

A case is a name and some arrays in one file, written beside and renamed, so that a run may be killed at any time. The folder
is hidden beside the result and carries in its name what the numbers depend on: another run never takes them.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from bieqno.persistence.tensorfile import PersistenceError, read_tensors, write_tensors

_KIND = "case"


@dataclass(frozen=True)
class Cases:
    """Where finished cases are kept.

    Attributes:
        folder: their folder; None to keep nothing.
        prefix: what the names begin with.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     first = Cases.beside(parent, "study", "0123").take("a", lambda: {"x": np.ones(2)})
        ...     again = Cases.beside(parent, "study", "0123").take("a", lambda: {"x": np.zeros(2)})
        >>> again["x"]
        array([1., 1.])
    """

    folder: Path | None = None
    prefix: str = ""
    taken: list[str] = field(default_factory=list)

    @classmethod
    def beside(cls, parent: str | Path, experiment: str, key: str) -> "Cases":
        """The cases of the run of an experiment that has this key."""
        return cls(Path(parent) / f".{experiment}.{key}.cases")

    def within(self, part: str) -> "Cases":
        """The same store for a part of the run, whose names may be those of another part."""
        return Cases(self.folder, f"{self.prefix}{part}/", self.taken)

    def take(self, name: str, compute: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The arrays of a case: read if it is finished, computed and kept otherwise."""
        path = self._path(name)
        if path is not None and path.exists():
            try:
                found = read_tensors(path, kind=_KIND)[0]
            except PersistenceError:
                path.unlink()  # damaged; to compute it again is all that it costs
            else:
                self.taken.append(self.prefix + name)
                return found
        arrays = dict(compute())
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, arrays, kind=_KIND, description=self.prefix + name)
        return arrays

    def checkpoint(self, name: str) -> Path | None:
        """Where the training that a case begins with may keep how far it has come; None if nothing is kept."""
        path = self._path(name)
        return None if path is None else path.with_suffix(".training")

    def finished(self) -> int:
        """How many cases are kept."""
        return 0 if self.folder is None else sum(1 for _ in self.folder.glob("*.case"))

    def remove(self) -> None:
        """Forget them all."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def remove_outdated(parent: str | Path, experiment: str, key: str) -> None:
        """Forget what other code or versions than those of the key have left of an experiment: no run will take it again."""
        current = f".{experiment}.{key.split('-')[0]}-"
        for folder in Path(parent).glob(f".{experiment}.*.cases"):
            if not folder.name.startswith(current):
                shutil.rmtree(folder, ignore_errors=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{quote(self.prefix + name, safe=' ,=')}.case"
