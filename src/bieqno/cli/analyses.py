"""``bieqno assimilate``, ``explain`` and ``export``: use a filter, see why an analysis is as it is, use it in other languages."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bieqno.cli.output import check_writable, interruptible, show_table, warn
from bieqno.cli.outside import EXECUTORS, continuing, cycle_members, open_executor
from bieqno.cli.records import TABLES, assimilate_record

if TYPE_CHECKING:
    from xarray import Dataset

    from bieqno.assimilation import Explanation
    from bieqno.lab.system_files.reading import SystemFile

STRANGE = 0.1  # of the pretrained filter's inputs, from which on it is said
SHOWN = 8  # variables that moved most, in the table
Setup = Annotated[Path, typer.Argument(metavar="SETUP", help="TOML file; the Python modules that it names are run.")]
Filter = Annotated[Path, typer.Argument(metavar="FILTER", help="File that `bieqno train-filter` wrote.")]
System = Annotated[Path, typer.Option("--setup", help="System that the filter was trained for.")]


def assimilate(
    setup: Setup,
    observations: Annotated[Path, typer.Option("--observations", help="netCDF file, one row per window, or a table.")],
    filter: Annotated[
        Path | None,
        typer.Option("--filter", help="File that `bieqno train-filter` wrote, MODULE:OBJECT, or pretrained."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", help="Table or netCDF file of the inputs that drive the model.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="netCDF file of the analysis.")] = Path("analysis.nc"),
    variable: Annotated[str | None, typer.Option("--variable", help="Its variable, if not 'observed'.")] = None,
    start: Annotated[Path | None, typer.Option("--start", help="An earlier analysis to continue from.")] = None,
    members: Annotated[int | None, typer.Option("--members", min=2, help="Ensemble size, if not the file's.")] = None,
    executor: Annotated[str | None, typer.Option("--executor", help=f"For a model outside JAX: {EXECUTORS}.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run of such a model that was stopped.")] = False,
    explain: Annotated[int | None, typer.Option("--explain", min=1, help="Window to explain, counted from 1.")] = None,
) -> None:
    """Assimilate observations: forecast and analyse window by window; write both ensembles of every window.

    A series in several parts, each continued with --start, gives the same analysis as in one part. With a model outside JAX
    every window is kept in a hidden folder beside --out, until the analysis is written. With --explain it shows which
    observations moved each variable in that window, as `bieqno explain` does. Without --filter the pretrained filter is used,
    which needs no training. It adapts to earlier windows; with --start it adapts anew.

    A record may also be a table with dates, and --inputs a table or netCDF file of what drives the model (rain, a control).
    Then the default filter is an EnKF, and a page beside --out has the scores of its predictions and of those without a model.

    Example: bieqno assimilate setup.toml --observations obs.nc --filter filter.bieqno --out analysis.nc
    """
    if observations.suffix.lower() in TABLES or inputs is not None:
        for name, given in (("--start", start), ("--executor", executor), ("--explain", explain), ("--resume", resume)):
            if given:
                raise ValueError(f"{name} is for observations in a netCDF file, without --inputs")
        return assimilate_record(setup, observations, inputs, filter, out, variable, members)
    filter = filter or Path("pretrained")
    with open_executor(executor) as pool:  # ranks of MPI that work for another end here
        _assimilate(setup, observations, filter, out, variable, start, members, pool, resume)
    if explain is not None:
        explain_analysis(filter, out, explain, setup, out.with_suffix(".explanation.png"))
    return None


def _assimilate(
    setup: Path,
    observations: Path,
    filter: Path,
    out: Path,
    variable: str | None,
    start: Path | None,
    members: int | None,
    pool: Any,
    resume: bool,
) -> None:
    from bieqno.assimilation import KeepScores, Members, cycle, keep_ensembles, save_dataset
    from bieqno.lab.system_files.reading import check_memory, read_system_file
    from bieqno.lab.system_files.series import analysis_dataset, last_analysis, read_observations

    check_writable(out, setup, observations, filter, start)
    file = read_system_file(setup)
    fitting = file.load_filter(filter)
    series = read_observations(observations, file, variable)
    start_key, run_key = _keys(file.settings.seed)
    check_memory("--members", (members or file.settings.ensemble.members) * file.system.size * len(series.variable))
    if start is None:
        ensemble, first_window = file.ensemble(members or file.settings.ensemble.members, key=start_key), 0
    else:
        ensemble, first_window = last_analysis(start, file)
    if members is not None and len(ensemble) != members:
        raise ValueError(f"the ensemble in {start} has {len(ensemble)} members, not {members}; leave out --members")
    outside, windows = isinstance(file.system.model, Members), out.with_name(f".{out.name}.windows")
    if not outside and (pool or resume):
        raise ValueError(f"{'--executor' if pool else '--resume'} is for models outside JAX; that of {setup} is not")
    with interruptible(lambda: f"continue with: {continuing(sys.argv[1:])}" if outside else "nothing was written"):
        how = {"record": KeepScores(fitting, keep_ensembles), "first_window": first_window, "key": run_key}
        if outside:
            how |= {"pool": pool, "folder": windows, "resume": resume}
            run = cycle_members(fitting, file.system, ensemble, series.observations, **how)
        else:
            how["survivors"] = file.settings.model.survivors
            run = cycle(fitting, file.system, ensemble, series.observations, **how)
        diverged = int(run.diverged)
    about = {"setup": str(setup), "observations": str(observations), "filter": str(filter), "seed": file.settings.seed}
    data = analysis_dataset(run, series, file, first_window=first_window, attributes=about)
    save_dataset(data, out)
    if outside and not int(run.lost.sum()):
        shutil.rmtree(windows, ignore_errors=True)
    strange = getattr(run.state, "unfamiliar", None)
    if strange is not None and float(strange) > STRANGE:
        warn(f"the pretrained filter met what it was not trained for ({float(strange):.2f}); compare it with another")
    mask = series.observations.mask
    typer.echo(f"{len(mask)} windows, {len(ensemble)} members, {int((~mask).sum())} of {mask.size} values missing")
    if diverged >= 0:
        warn(f"the filter diverged in window {diverged + 1} of {len(mask)}; from there on the analysis is missing")
    elif "truth" in data:
        errors = ((data["posterior"].mean("member") - data["truth"]) ** 2).mean("state").values ** 0.5
        early, late = errors[: -(-len(errors) // 2)].mean(), errors[len(errors) // 2 :].mean()
        typer.echo(f"RMSE against the truth in {observations}: {early:.3f}, then {late:.3f} in the second half")
    typer.echo(f"written to {out}")


def _keys(seed: int) -> tuple[Any, Any]:
    """Return the keys of the first ensemble and of the run."""
    import jax

    start_key, run_key = jax.random.split(jax.random.key(seed))
    return start_key, run_key


def export(
    filter: Filter,
    setup: System = Path("setup.toml"),
    format: Annotated[str, typer.Option("--format", help="onnx or stablehlo.")] = "onnx",
    members: Annotated[str, typer.Option("--members", help="Ensemble size: a number, or free.")] = "free",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; by default beside the filter.")] = None,
) -> None:
    """Write a trained filter as an ONNX graph or a StableHLO program, for programs in C, C++, Fortran and other languages.

    Its inputs are the ensemble (N, n), the observed values (m), NaN where one is missing, and standard normal noise (N, n).

    Example: bieqno export filter.bieqno --setup setup.toml --format onnx --members free
    """
    from bieqno.interop.export import export_filter
    from bieqno.lab.system_files.reading import read_system_file

    target = out or filter.with_suffix(f".{format}")
    check_writable(target, filter, setup)
    if members != "free" and not (members.isdecimal() and int(members) > 0):
        raise ValueError(f"--members is a positive number or free, got {members}")
    file = read_system_file(setup)
    fitting = file.load_filter(filter)
    number = None if members == "free" else int(members)
    export_filter(fitting, file.system, target, format=format, members=number)
    size = f"N x {file.system.size} (any N)" if number is None else f"{number} x {file.system.size}"
    typer.echo(f"ensembles {size}, {file.system.observed} observed values; written to {target}")


def explain_analysis(
    filter: Filter,
    analysis: Annotated[Path, typer.Option("--analysis", help="File that `bieqno assimilate` wrote.")],
    window: Annotated[int, typer.Option("--window", min=1, help="Number of the window, counted from 1.")],
    setup: System = Path("setup.toml"),
    out: Annotated[Path, typer.Option("--out", help="Picture of the contributions.")] = Path("explanation.png"),
) -> None:
    """Show which observations moved each variable in one window, and by how much.

    Exact for linear updates; for learned ones by integrated gradients, from no innovation to the observed values.

    Example: bieqno explain filter.bieqno --analysis analysis.nc --window 12
    """
    from bieqno.assimilation import load_dataset
    from bieqno.lab.system_files.reading import read_system_file

    check_writable(out, filter, analysis, setup)
    file = read_system_file(setup)
    data = load_dataset(analysis)
    missing = [name for name in ("prior", "observed") if name not in data]
    if missing:
        raise ValueError(f"{analysis} has no {' and no '.join(missing)}: `bieqno assimilate` did not write it")
    explain_window(file.load_filter(filter), file, data, window, out)


def explain_window(filter: Any, file: "SystemFile", data: "Dataset", window: int, out: Path) -> None:
    """Explain one window of an analysis, counted from 1: print a table and write a picture."""
    import jax.numpy as jnp

    from bieqno.assimilation import explain
    from bieqno.assimilation.twin import window_keys
    from bieqno.lab.report.run_figures import explanation_picture
    from bieqno.persistence import replace_file

    seed, windows = int(data.attrs.get("seed", file.settings.seed)), data.sizes["time"]
    if window > windows:
        raise ValueError(f"the analysis has {windows} windows, window {window} cannot be explained")
    row = data.isel(time=window - 1)
    number = int(data.attrs.get("last_window", windows)) - windows + window - 1
    observed = file.system.observation.window(jnp.asarray(row["observed"].values, float))
    prior = jnp.asarray(row["prior"].transpose("member", "state").values, float)
    found = explain(filter, prior, observed, key=window_keys(_keys(seed)[1], number)[1])
    replace_file(out, explanation_picture(found, title=f"Window {window}"))
    show_table(*contribution_rows(found), title=f"What moved the {SHOWN} variables that moved most")
    rest = float(jnp.max(jnp.abs(found.remainder)))
    typer.echo(f"{METHODS[found.method]} Without any innovation a variable moves by {rest:.2g} at most.")
    typer.echo(f"written to {out}")


METHODS = {
    "linear": "The update is linear: contributions are the gain times the innovation, exactly.",
    "path": "The update is not linear: contributions are integrated from no innovation to the observed values.",
    "leave-one-out": "The update has no derivative: contributions are what leaving out each observation changes.",
}


def contribution_rows(found: "Explanation") -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a table: the variables that moved most, each with the observations that moved it most."""
    import numpy as np

    increment, parts, innovation = (np.asarray(x) for x in (found.increment, found.contribution, found.innovation))
    rows: list[Any] = []
    for variable in np.argsort(-np.abs(increment))[:SHOWN]:
        most = [k for k in np.argsort(-np.abs(parts[variable]))[:3] if parts[variable, k] != 0]
        said = ", ".join(f"{parts[variable, k]:+.3g} by value {k} (innovation {innovation[k]:+.3g})" for k in most)
        rows.append([str(variable), f"{increment[variable]:+.3g}", said])
    return ["variable", "increment", "moved by"], rows
