"""``bieqno compare``: the neural filter against tuned classical filters in a twin experiment of a set-up."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bieqno.cli.own_model import SetupFile
from bieqno.cli.talk import check_writable, counting_bar, stoppable

_FILES = ("comparison.html", "comparison.json", "comparison.nc", "filter.bieqno")


def compare(
    setup: SetupFile,
    filter: Annotated[
        Path | None, typer.Option("--filter", help="A trained filter; if not given, one is trained and saved in --out.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the page, the numbers and the series.")] = Path(
        "comparison"
    ),
) -> None:
    """Compare the neural filter with tuned classical filters in a twin experiment of that very set-up.

    EnKF and ETKF take part, and the LETKF where the set-up says where things are. All are tuned on other truths than
    they are scored on. The set-up's own Python module is imported: run only set-ups that you trust.

    Example: bieqno compare setup.toml --filter filter.bieqno --out comparison
    """
    import jax

    from bieqno.assimilation import Filter, save_dataset, save_filter
    from bieqno.cli.filters import fitting_filter, trained
    from bieqno.lab.jsontext import json_text
    from bieqno.lab.report.comparison_page import comparison_page, comparison_rows, verdict
    from bieqno.lab.system_files import contest, contest_dataset, read_setup
    from bieqno.persistence.tensorfile import replace_file

    own = read_setup(setup)
    _own_folder(out)
    used = out / "filter.bieqno" if filter is None else filter
    saved = "nothing was written"
    with stoppable(lambda: saved):
        if filter is None:
            ennf: Filter = trained(own)
            save_filter(used, ennf)
            saved = f"the trained filter is in {used}; go on with `bieqno compare {setup} --filter {used} --out {out}`"
        else:
            ennf = fitting_filter(filter, own)
        key = jax.random.fold_in(jax.random.key(own.tables.seed), 2)
        with counting_bar("compare") as tell:
            entries, truth = contest(own, ennf, key=key, tell=tell)
    arrays = contest_dataset(own, entries, truth)
    command = (
        f"bieqno compare {shlex.quote(str(setup))} --filter {shlex.quote(str(used))} --out {shlex.quote(str(out))}"
    )
    page = comparison_page(
        entries, arrays, burn_in=own.tables.compare.burn_in, command=command,
        setup_text=setup.read_text(encoding="utf-8"),
    )  # fmt: skip
    numbers = {"command": command, "seed": own.tables.seed, "entries": [entry.numbers() for entry in entries]}
    save_dataset(arrays, out / "comparison.nc")
    replace_file(out / "comparison.json", json_text(numbers).encode())
    replace_file(out / "comparison.html", page.encode())
    headings, rows, _ = comparison_rows(entries)
    shown = Table(*headings, box=None, padding=(0, 1), pad_edge=False, title="RMSE of the analysis")
    for row in rows:
        shown.add_row(*row)
    Console(width=100).print(shown)
    typer.echo(verdict(entries))
    typer.echo(f"written to {out}: comparison.html, comparison.json, comparison.nc")


def _own_folder(out: Path) -> None:
    """Make the folder of the results; one with foreign files in it is refused."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out names a folder")
    foreign = sorted(path.name for path in out.iterdir() if path.name not in _FILES) if out.exists() else []
    if foreign:
        raise ValueError(f"{out} holds other files, such as {foreign[0]}; name a new folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / _FILES[0])
