"""``bieqno init``: a commented set-up that works as it is, to be changed into one's own."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

_FILES = ("setup.toml", "my_model.py")


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the set-up; made if there is none.")],
) -> None:
    """Write a commented example set-up (Lorenz-96) to start from: setup.toml and my_model.py.

    It works as it is. Files that are there already are never overwritten.

    Example: bieqno init my_setup
    """
    from bieqno.persistence.tensorfile import replace_file

    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise ValueError(f"{folder} already holds {' and '.join(there)}; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        replace_file(folder / name, (files("bieqno.cli") / "example" / name).read_bytes())
    typer.echo(f"""written to {folder}: {", ".join(_FILES)}

Next, and then again after you have changed them to your own model:
  cd {shlex.quote(str(folder))}
  bieqno simulate setup.toml --out obs.nc
  bieqno train-filter setup.toml --out filter.bieqno
  bieqno assimilate setup.toml --observations obs.nc --filter filter.bieqno --out analysis.nc
  bieqno compare setup.toml --filter filter.bieqno --out comparison

Observations of your own are a netCDF file with a variable by time and observed value, one row a window, NaN where a
value is missing; `bieqno simulate` writes one of that form.""")
