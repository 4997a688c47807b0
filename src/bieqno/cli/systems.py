"""``bieqno init``, ``simulate``, ``train-filter`` and ``compare``: a system of the user's own and a filter for it."""

import shlex
import shutil
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bieqno.cli.output import (
    LARGEST_SEED,
    alone,
    check_writable,
    counting_bar,
    interruptible,
    show_table,
    training_bar,
    warn,
    write_page,
)
from bieqno.cli.records import driving_inputs, first_of

if TYPE_CHECKING:
    from bieqno.lab.system_files.reading import SystemFile

_EXAMPLE = ("setup.toml", "my_model.py")
_RESULTS = ("comparison.html", "comparison.json", "comparison.nc", "filter.bieqno")
Inputs = Annotated[
    Path | None, typer.Option("--inputs", help="Table or netCDF file of the model's inputs, one row per window.")
]
Setup = Annotated[Path, typer.Argument(metavar="SETUP", help="TOML file; the Python modules that it names are run.")]


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the system; created if missing.")],
) -> None:
    """Write a working example with comments (Lorenz-96, every fourth variable observed): setup.toml and my_model.py.

    Example: bieqno init my_system
    """
    from bieqno.persistence import replace_file

    example = files("bieqno.cli") / "example"
    there = [name for name in _EXAMPLE if (folder / name).exists()]
    if there:
        raise ValueError(f"{folder} already holds {' and '.join(there)}; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _EXAMPLE:
        replace_file(folder / name, (example / name).read_bytes())
    text = (example / "next_steps.txt").read_text(encoding="utf-8").rstrip()
    typer.echo(text.format(folder=folder, files=", ".join(_EXAMPLE), quoted=shlex.quote(str(folder))))


def simulate(
    setup: Setup,
    out: Annotated[Path, typer.Option("--out", help="netCDF file of the observations and the truth.")] = Path("obs.nc"),
    windows: Annotated[int, typer.Option("--windows", min=2, help="Length of the series.")] = 200,
    missing: Annotated[float, typer.Option("--missing", min=0.0, max=0.99, help="Share of missing values.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of all random numbers.")] = 1,
    inputs: Inputs = None,
) -> None:
    """Simulate a truth of the model and its observations, for tests before real ones are used.

    A model with inputs begins near its 'state'; one without spins up first.

    Example: bieqno simulate setup.toml --out obs.nc
    """
    import jax
    import numpy as np

    from bieqno.assimilation import save_dataset, spin_up
    from bieqno.assimilation import simulate as simulate_twin
    from bieqno.lab.system_files.reading import check_memory, read_system_file
    from bieqno.lab.system_files.series import observations_dataset

    check_writable(out, setup, inputs)
    times, driven = (None, None) if inputs is None else driving_inputs(inputs, windows)
    file = read_system_file(setup, first_of(driven))
    system = file.system
    check_memory("--windows", windows * (system.size + system.observed))
    spin_key, twin_key, mask_key = jax.random.split(jax.random.key(seed), 3)
    start = system.state + file.spread * jax.random.normal(spin_key, system.state.shape)
    if driven is None:
        start = spin_up(system, 100, state=start, key=spin_key)[-1]
    if not np.isfinite(np.asarray(start)).all():
        raise ValueError(
            f"{setup}: a run of the model that begins about 'state' did not stay finite for 100 windows; give a state nearer the "
            "attractor, or a smaller 'spread' in [ensemble]"
        )
    mask = jax.random.uniform(mask_key, (windows, system.observed)) >= missing
    twin = simulate_twin(system, windows, state=start, mask=mask, inputs=driven, key=twin_key)
    if not np.isfinite(np.asarray(twin.truth)).all():
        raise ValueError(f"the model of {setup} did not stay finite for {windows} windows")
    save_dataset(observations_dataset(twin, file, times), out)
    typer.echo(f"{windows} windows of {system.observed} values, {int((~mask).sum())} missing, written to {out}")


def train_filter(
    setup: Setup,
    out: Annotated[Path, typer.Option("--out", help="File of the trained filter.")] = Path("filter.bieqno"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue where the same training was stopped.")] = False,
) -> None:
    """Train the neural filter of a system file, and save it: by default the local filter, against the truth.

    Twice a minute a checkpoint is written to a hidden folder beside --out, which is removed when the filter is saved.
    The filter's file holds numbers only.

    Example: bieqno train-filter setup.toml --out filter.bieqno
    """
    from bieqno.assimilation import save_filter
    from bieqno.lab.system_files.reading import read_system_file

    check_writable(out, setup, beside=True)
    file = read_system_file(setup)
    kept = out.with_name(f".{out.name}.training")
    if not resume:
        with alone(kept):  # of another training that is under way
            shutil.rmtree(kept, ignore_errors=True)
    again = shlex.join(["bieqno", "train-filter", str(setup), "--out", str(out), "--resume"])
    resumable = f"but a checkpoint is kept; continue with: {again}"

    def outcome() -> str:
        begun = kept.is_dir() and any(kept.iterdir())
        return f"no filter was written, {resumable if begun else 'and no checkpoint yet'}"

    with interruptible(outcome), alone(kept):
        filter = _train(file, checkpoint=kept)
        save_filter(out, filter)
        shutil.rmtree(kept, ignore_errors=True)
    typer.echo(f"written to {out}")


def compare(
    setup: Setup,
    filter: Annotated[Path | None, typer.Option("--filter", help="By default one is trained.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of page, numbers and series.")] = Path("comparison"),
    inputs: Inputs = None,
) -> None:
    """Compare the neural filter with tuned classical filters in a twin experiment of the system.

    Local filters take part if the file has positions. All filters are tuned on other truths than they are scored on. The
    pretrained filter is included. None is trained with ``--filter pretrained`` or --inputs.

    Example: bieqno compare setup.toml --filter filter.bieqno --out comparison
    """
    import jax

    from bieqno.assimilation import save_dataset, save_filter
    from bieqno.lab.report import comparison_page as pages
    from bieqno.lab.system_files.reading import PRETRAINED, read_settings, read_system_file
    from bieqno.lab.user_comparisons import compare_filters_on, entries_dataset, entry_numbers

    driven = None
    if inputs is not None:
        wanted = read_settings(setup).compare
        _, driven = driving_inputs(inputs, max(wanted.windows, wanted.tuning_windows))
        filter = filter or Path(PRETRAINED)
    file = read_system_file(setup, first_of(driven))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out names a folder")
    for path in sorted(out.iterdir()) if out.exists() else ():
        if path.name not in _RESULTS:
            raise ValueError(f"{out} holds other files, such as {path.name}; name a new folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / _RESULTS[0])
    used, outcome = filter or out / "filter.bieqno", "nothing was written"
    driving = [] if inputs is None else ["--inputs", str(inputs)]
    command = shlex.join(["bieqno", "compare", str(setup), "--filter", str(used), "--out", str(out), *driving])
    with interruptible(lambda: outcome):
        if filter is None:
            learned = _train(file)
            save_filter(used, learned)
            outcome = f"the trained filter is in {used}; continue with: {command}"
        else:
            learned = file.load_filter(filter, first_of(driven))
        name, wanted = type(learned).__name__.removeprefix("Local"), file.settings.compare
        shown = {name: learned, "pretrained EnNF": file.load_filter(Path(PRETRAINED))}
        if str(filter) == PRETRAINED:
            del shown[name]
        with counting_bar("compare") as on_progress:
            entries, truth = compare_filters_on(
                file.system, shown, sizes=wanted.sizes, truths=wanted.truths, windows=wanted.windows,
                burn_in=wanted.burn_in, tuning=(wanted.tuning_truths, wanted.tuning_windows),
                inflation=wanted.inflation, radius=wanted.radius, trials=partial(file.trials, inputs=driven),
                on_progress=on_progress, key=jax.random.fold_in(jax.random.key(file.settings.seed), 2),
            )  # fmt: skip
    arrays = entries_dataset(entries, truth, window=file.window)
    save_dataset(arrays, out / "comparison.nc")
    text = setup.read_text(encoding="utf-8")
    page = pages.comparison_page(entries, arrays, burn_in=wanted.burn_in, command=command, setup_text=text)
    numbers = {"command": command, "seed": file.settings.seed, "entries": [entry_numbers(entry) for entry in entries]}
    write_page(out / "comparison.html", page, numbers)
    show_table(*pages.comparison_rows(entries)[:2], title="RMSE of the analysis")
    for size, (headings, rows, _) in pages.prediction_tables(entries).items():
        show_table(headings, rows, title=f"observations one step ahead, N = {size}")
    typer.echo(
        f"{pages.comparison_verdict(entries)}\nwritten to {out}: comparison.html, comparison.json, comparison.nc"
    )


def _train(file: "SystemFile", *, checkpoint: Path | None = None) -> Any:
    """Train the filter of a system file with a bar, continuing from a checkpoint if there is one; say how it went."""
    import jax

    from bieqno.lab.system_files.training import train_student

    key = jax.random.fold_in(jax.random.key(file.settings.seed), 1)
    with training_bar("training") as on_progress:
        result = train_student(file, checkpoint=checkpoint, on_progress=on_progress, warn=warn, key=key)
    best = ""
    if len(result.validations):
        chunk = len(result.losses) / len(result.validations)
        error = result.validations[max(round(result.best_step / chunk) - 1, 0)]
        best = f", best after {result.best_step} with a validation error of {error:.3f}"
    stopped = ", stopped early" if result.stopped_early else ""
    typer.echo(f"trained for {len(result.losses)} steps{best}{stopped}")
    for size, (ours, base) in result.errors.items():
        relation = f"{1 - ours / base:.0%} below" if ours < base else "no better than"
        typer.echo(f"  N = {size}: validation error {min(ours, base):.3f}, {relation} the tuned LETKF inside it")
    return result.module
