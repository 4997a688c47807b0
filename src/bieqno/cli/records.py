"""``bieqno assimilate`` on a record in tables or netCDF files: dates, gaps, unequal steps, and the inputs of the model."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bieqno.cli.output import check_writable, interruptible, show_table, warn, write_page

if TYPE_CHECKING:
    import pandas as pd

    from bieqno.lab.records.own import OwnRecord
    from bieqno.lab.system_files.reading import SystemFile

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx", ".xlsm")


def assimilate_record(
    setup: Path,
    observations: Path,
    inputs: Path | None,
    filter: Path | None,
    out: Path,
    variable: str | None,
    members: int | None,
) -> None:
    """Assimilate a record; write the analysis, and a page with scores beside those of predictions without a model."""
    import numpy as np

    from bieqno.assimilation import EnKF, save_dataset
    from bieqno.cli.table_files import pick
    from bieqno.lab.records.own import own_baselines, own_record
    from bieqno.lab.report.record_page import FILTER, SPIN, next_steps, record_page, record_scores, score_table
    from bieqno.lab.system_files.reading import read_system_file

    page = out.with_suffix(".html")
    check_writable(out, setup, observations, inputs, filter)
    check_writable(page)
    table = _series(observations)
    columns = None if variable is None else pick(variable, list(table.columns), observations)
    record = own_record(table, None if inputs is None else _series(inputs), columns)
    file = read_system_file(setup, record.first_inputs)
    if len(record.names) != file.system.observed:
        there = f"{observations} has {len(record.names)} ({', '.join(record.names)})"
        raise ValueError(f"{setup} observes {file.system.observed} values, {there}; name them with --variable")
    fitting: Any = EnKF() if filter is None else file.load_filter(filter, record.first_inputs)
    with interruptible():
        data = _run(file, record, fitting, members)
        own, *others = (own_baselines(record, file.system.observation.error, k) for k in range(len(record.names)))
        for name, of_column in ((name, kept) for other in others for name, kept in other.items()):
            own[name]["log_score"] = own[name]["log_score"] + np.nan_to_num(of_column["log_score"])
    diverged = int(data.attrs["diverged"])
    save_dataset(data, out)
    kept = {name: data[name].values.reshape(len(record.times), -1)[:, 0] for name in ("log_score", "crps", "pit")}
    found = {FILTER: kept, **own}
    series = data[["observed", "predicted_mean", "predicted_spread"]].isel(observation=0)
    series = series.rename(predicted_mean="mean", predicted_spread="spread")
    if 0 <= diverged < len(kept["pit"]) // SPIN:
        raise ValueError(f"{next_steps({}, kept['pit'], diverged)[0]} What there is was written to {out}.")
    scored = record_scores(found)
    command = shlex.join(["bieqno", *sys.argv[1:]])
    about: Any = {"title": record.names[0], "command": command, "setup_text": setup.read_text(encoding="utf-8")}
    write_page(page, record_page(series, found, **about, diverged=diverged), {"command": command, "scores": scored})
    show_table(*score_table(scored)[:2], title=f"{record.names[0]}, one step ahead")
    if diverged >= 0:
        warn(f"the filter diverged in window {diverged + 1} of {len(record.times)}")
    typer.echo("\n".join(next_steps(scored, kept["pit"], diverged)))
    typer.echo(f"written to {out} and {page}")


def driving_inputs(path: Path, windows: int) -> tuple[Any, dict[str, Any]]:
    """Return the times of so many windows and the inputs of the model in them, from a table or netCDF file."""
    import jax.numpy as jnp

    from bieqno.lab.records.own import own_inputs

    times, found = own_inputs(_series(path))
    if len(times) < windows:
        raise ValueError(f"{path} has {len(times)} rows, one per window, and {windows} windows were asked for")
    return times[:windows], {name: jnp.asarray(series[:windows], float) for name, series in found.items()}


def first_of(inputs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the inputs of the first window."""
    return None if inputs is None else {name: series[0] for name, series in inputs.items()}


def _series(path: Path) -> "pd.DataFrame":
    """Return a table, or the series along the time of a netCDF file as one, with a column for each place of a series of many."""
    import pandas as pd

    from bieqno.assimilation import load_dataset
    from bieqno.cli.table_files import read_table

    if path.suffix.lower() in TABLES:
        return read_table(path)
    data = load_dataset(path)
    columns = {}
    chosen = data[["observed"]] if "observed" in data else data  # what `bieqno simulate` wrote has the truth beside it
    for name, series in chosen.data_vars.items():
        if series.dims == ("time",):
            columns[str(name)] = series.values
        elif series.ndim == 2 and series.dims[0] == "time":
            columns |= {f"{name}_{k}": column for k, column in enumerate(series.values.T)}
    if "time" not in data.coords or not columns:
        raise ValueError(f"{path} has no series along a coordinate 'time'")
    return pd.DataFrame({"time": data["time"].values, **columns})


def _run(file: "SystemFile", record: "OwnRecord", filter: Any, members: int | None) -> Any:
    """Run the filter through all windows; return both ensembles and the scores as a dataset."""
    import jax
    import jax.numpy as jnp

    from bieqno.assimilation import KeepScores, Observations, cycle, keep_ensembles, to_dataset

    start_key, run_key = jax.random.split(jax.random.key(file.settings.seed))
    count = members or file.settings.ensemble.members
    driven = None
    if record.inputs is not None:
        driven = {name: jnp.asarray(series, float) for name, series in record.inputs.items()}
    ensemble = file.ensemble(count, driven=driven is not None, key=start_key)
    seen = Observations.of(jnp.asarray(record.values, float))
    survivors = file.settings.model.survivors
    how: Any = {"inputs": driven, "record": KeepScores(filter, keep_ensembles), "survivors": survivors, "key": run_key}
    data = to_dataset(cycle(filter, file.system, ensemble, seen, **how))
    return data.assign_coords(time=("time", record.times.to_numpy()))
