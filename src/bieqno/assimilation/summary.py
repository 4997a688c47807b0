"""All scores of a run in one table: forecast and analysis, with confidence intervals."""

import jax.numpy as jnp
import numpy as np
import xarray as xr

from bieqno.scores import (
    autocorrelated_interval,
    coverage,
    crps,
    energy_score,
    relative_rmse,
    rmse,
    spread,
    spread_error_ratio,
)


def summarise(data: xr.Dataset, *, burn_in: int, level: float = 0.95) -> xr.Dataset:
    """Scores of a run against its truth, with intervals that respect the autocorrelation of its errors.

    Scores of whole series, such as the spread-error ratio, come without an interval. For runs on independent truths
    take one number each, and `bieqno.scores.independent_interval` of them.

    Args:
        data: from `to_dataset`, of a record that keeps ensembles, with a truth.
        burn_in: windows at the beginning that do not count; neither do those after a divergence.
        level: of the intervals.

    Returns:
        `mean`, `stderr`, `low` and `high`, each by `stage` (forecast, analysis) and `score`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Lorenz63, Observation, cycle, keep_ensembles, simulate, to_dataset
        >>> model, observation = Lorenz63(window=0.1), Observation([0, 2], 1.0)
        >>> twin = simulate(model, observation, 40, state=jnp.array([-8.5, -7.0, 27.0]), key=jax.random.key(0))
        >>> start = jax.random.normal(jax.random.key(1), (10, 3)) + twin.truth[0]
        >>> run = cycle(
        ...     ETKF(), model, observation, start, twin.observations, record=keep_ensembles, key=jax.random.key(2)
        ... )
        >>> table = summarise(to_dataset(run, twin), burn_in=10)
        >>> spread = table["mean"].sel(score="spread")  # an observation takes spread away, whatever it says
        >>> bool(spread.sel(stage="analysis") < spread.sel(stage="forecast"))
        True
    """
    missing = {"prior", "posterior", "truth"} - set(data.data_vars)
    if missing:
        raise ValueError(f"expected ensembles and truth in the dataset, missing {sorted(missing)}")
    keep = (np.arange(data.sizes["time"]) >= burn_in) & (data["sound"].values == 1)
    if keep.sum() < 4:
        raise ValueError(f"an interval needs 4 sound windows, {keep.sum()} are left after a burn-in of {burn_in}")
    truth = jnp.asarray(data["truth"].values[keep])
    rows = []
    for name in ("prior", "posterior"):
        members = jnp.asarray(data[name].values[keep])
        mean = jnp.mean(members, axis=1)
        series = {
            "rmse": rmse(truth, mean),
            "spread": spread(members),
            "crps": crps(truth, members),
            "energy_score": energy_score(truth, members),
        }
        whole = {
            "relative_rmse": relative_rmse(truth, mean),
            "spread_error_ratio": spread_error_ratio(truth, members),
            "coverage_90": coverage(truth, members, 0.9),
        }
        intervals = [tuple(autocorrelated_interval(values, level)) for values in series.values()]
        rows.append(intervals + [(float(value), np.nan, np.nan, np.nan) for value in whole.values()])
    table = np.array(rows)
    columns = {
        column: (("stage", "score"), table[..., k]) for k, column in enumerate(("mean", "stderr", "low", "high"))
    }
    coordinates = {"stage": ["forecast", "analysis"], "score": [*series, *whole]}
    return xr.Dataset(columns, coordinates, {"title": "Scores of a run", "level": level, "burn_in": burn_in})
