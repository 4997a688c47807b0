"""Output folders: ours are used, others are refused, and what cannot be written to is found out before hours of computing."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from bieqno.lab.results import METRICS_FILE

PAGE = "report.html"


def prepare(out: Path, experiments: Iterable[str]) -> None:
    """Make the folder of all results, or say why it cannot be used.

    Raises:
        ValueError: if the folder, or that of an experiment, holds something else.
        OSError: if nothing can be written there.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; results need a folder, choose another with --out")
    if out.is_dir() and _is_foreign(out):
        raise ValueError(f"{out} is not empty and holds no results of bieqno; choose another folder with --out")
    for name in experiments:
        folder = out / name
        if folder.exists() and not (folder / METRICS_FILE).exists():
            raise ValueError(f"{folder} is in the way and holds no result of bieqno; choose another folder with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from error


def _is_foreign(out: Path) -> bool:
    entries = list(out.iterdir())
    ours = (path.name == PAGE or path.suffix == ".cases" or (path / METRICS_FILE).exists() for path in entries)
    return bool(entries) and not any(ours)
