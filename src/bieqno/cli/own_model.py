"""``bieqno simulate``, ``train-filter`` and ``assimilate``: data assimilation with a model of the user's own."""

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from bieqno.cli.talk import check_writable, stoppable, warn

SetupFile = Annotated[
    Path, typer.Argument(metavar="SETUP", help="TOML file; the Python modules it names are imported, that is, run.")
]
FilterFile = Annotated[Path, typer.Option("--filter", help="File that `bieqno train-filter` wrote.")]


def simulate_observations(
    setup: SetupFile,
    out: Annotated[Path, typer.Option("--out", help="netCDF file of the observations and their truth.")] = Path(
        "obs.nc"
    ),
    windows: Annotated[int, typer.Option("--windows", min=2, help="Length of the series.")] = 200,
    missing: Annotated[
        float, typer.Option("--missing", min=0.0, max=0.99, help="Share of the values that are missing.")
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another number, another truth.")] = 1,
) -> None:
    """Simulate a truth of a set-up's model and its observations, to try out what is to run on real ones.

    Example: bieqno simulate setup.toml --out obs.nc
    """
    import jax
    import numpy as np

    from bieqno.assimilation import save_dataset, simulate, spin_up
    from bieqno.lab.system_files import observations_dataset, read_setup

    check_writable(out, setup)
    own = read_setup(setup)
    spin_key, twin_key, mask_key = jax.random.split(jax.random.key(seed), 3)
    disturbed = own.state + own.spread * jax.random.normal(spin_key, own.state.shape)
    start = spin_up(own.model, disturbed, 100, key=spin_key)[-1]
    mask = jax.random.uniform(mask_key, (windows, own.observed)) >= missing
    twin = simulate(own.model, own.observation, windows, state=start, mask=mask, key=twin_key)
    if not np.isfinite(np.asarray(twin.truth)).all():
        raise ValueError(f"the model of {setup} left the finite numbers within {100 + windows} windows")
    save_dataset(observations_dataset(twin, own), out)
    typer.echo(f"{windows} windows of {own.observed} values, {int((~mask).sum())} missing, written to {out}")


def train_filter(
    setup: SetupFile,
    out: Annotated[Path, typer.Option("--out", help="File of the trained filter.")] = Path("filter.bieqno"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same training was stopped.")] = False,
) -> None:
    """Train the ensemble neural filter of a set-up, and save it.

    Twice a minute what was learned is kept in a hidden folder beside --out, until the filter is there.
    The set-up's own Python module is imported: run only set-ups that you trust. The filter's file holds numbers only.

    Example: bieqno train-filter setup.toml --out filter.bieqno
    """
    from bieqno.assimilation import save_filter
    from bieqno.cli.filters import trained
    from bieqno.lab.system_files import read_setup

    check_writable(out, setup)
    own = read_setup(setup)
    kept = out.with_name(f".{out.name}.training")
    if not resume:
        shutil.rmtree(kept, ignore_errors=True)
    again = shlex.join(["bieqno", "train-filter", str(setup), "--out", str(out), "--resume"])
    learned = f"no filter was written, but what was learned so far is kept; go on with: {again}"
    with stoppable(lambda: learned if kept.exists() else "no filter was written, and nothing was learned yet"):
        filter = trained(own, checkpoint=kept)
    save_filter(out, filter)
    shutil.rmtree(kept, ignore_errors=True)
    typer.echo(f"written to {out}")


def assimilate(
    setup: SetupFile,
    observations: Annotated[
        Path, typer.Option("--observations", help="netCDF file: a row a window, NaN where a value is missing.")
    ],
    filter: FilterFile,
    out: Annotated[Path, typer.Option("--out", help="netCDF file of the analysis.")] = Path("analysis.nc"),
    variable: Annotated[
        str | None, typer.Option("--variable", help="Name of the observed variable, if not 'observed'.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--start", help="An earlier analysis, to go on from its last ensemble.")
    ] = None,
    members: Annotated[
        int | None, typer.Option("--members", min=2, help="Ensemble size, if not that of the set-up.")
    ] = None,
) -> None:
    """Take an ensemble through observations: forecast, analyse, and so on; writes both ensembles of every window.

    The set-up's own Python module is imported: run only set-ups that you trust.

    Example: bieqno assimilate setup.toml --observations obs.nc --filter filter.bieqno --out analysis.nc
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bieqno.assimilation import cycle, keep_ensembles, save_dataset, to_dataset
    from bieqno.cli.filters import fitting_filter
    from bieqno.lab.system_files import last_ensemble, read_observations, read_setup, with_observations

    check_writable(out, setup, observations, filter, start)
    own = read_setup(setup)
    fitting = fitting_filter(filter, own)
    series = read_observations(observations, own, variable)
    start_key, run_key = jax.random.split(jax.random.key(own.tables.seed))
    count = members or own.tables.ensemble.members
    ensemble = own.ensemble(count, key=start_key) if start is None else jnp.asarray(last_ensemble(start, own))
    if members is not None and len(ensemble) != members:
        raise ValueError(
            f"the last ensemble in {start} has {len(ensemble)} members, not {members}; leave out --members"
        )
    with stoppable(lambda: "nothing was written"):
        run = cycle(
            fitting, own.model, own.observation, ensemble, series.observations,
            record=keep_ensembles, limit=own.tables.model.limit, key=run_key,
        )  # fmt: skip
        diverged = int(run.diverged)
    about: dict[str, str | int | float] = {
        "setup": str(setup), "observations": str(observations), "filter": str(filter), "seed": own.tables.seed,
    }  # fmt: skip
    data = with_observations(to_dataset(run, window=own.window, attributes=about), series.variable)
    if series.truth is not None:
        data = data.assign(truth=(("time", "state"), series.truth, {"long_name": "true state"}))
    save_dataset(data, out)
    mask = np.asarray(series.observations.mask)
    typer.echo(f"{len(mask)} windows, {len(ensemble)} members, {(~mask).sum()} of {mask.size} values missing")
    if diverged >= 0:
        warn(f"the filter diverged in window {diverged + 1} of {len(mask)}; from there on the analysis is missing")
    elif series.truth is not None:
        errors = np.sqrt(((data["posterior"].mean("member") - data["truth"]) ** 2).mean("state").values)
        early, late = np.array_split(errors, 2)
        typer.echo(
            f"RMSE against the truth in {observations}: {early.mean():.3f}, then {late.mean():.3f} in the second half"
        )
    typer.echo(f"written to {out}")
