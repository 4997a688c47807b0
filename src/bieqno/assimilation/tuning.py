"""Finding the settings of a filter, on truths that are not those it will be tested on."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.filters.filter import Filter
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.observation import Observation
from bieqno.assimilation.records import keep_mean
from bieqno.assimilation.trials import Trials, first_windows
from bieqno.assimilation.twin import cycle
from bieqno.scores import rmse


class Tuning(NamedTuple):
    """The winner, and the score surface it won on.

    Args:
        best: the winning settings by name.
        score: their score: error of the analysis mean, averaged over windows and truths; infinite if all diverged.
        surface: all settings tried, each with its score, its share of diverged runs and the number of
            windows it was judged on; the winner is among its attributes, so that `save_dataset` stores both.
    """

    best: dict[str, float]
    score: float
    surface: xr.Dataset


def tune(
    build: Callable[..., Filter],
    settings: Mapping[str, Sequence[float]],
    model: Model,
    observation: Observation,
    trials: Trials,
    *,
    burn_in: int,
    rungs: int = 1,
    keep: float = 1 / 3,
    limit: float | Float[Array, "n"] = 1e6,
    chunk: int = 8,
    progress: Callable[[int, int], None] | None = None,
    key: PRNGKeyArray,
) -> Tuning:
    """Try all combinations of settings on all trials and take the best.

    With more than one rung by successive halving: all settings run over the first windows only, the best
    share of them goes on to a longer series, and so forth to the whole. A setting with fewer diverged runs
    beats one with more, whatever their errors.

    Args:
        build: makes a filter from the settings, given by name as traced numbers.
        settings: the values to try for each name.
        model: the dynamics.
        observation: how states are observed.
        trials: truths, observations and first ensembles to tune on.
        burn_in: windows at the beginning that do not count.
        rungs: 1 for a plain grid; otherwise the number of rounds of halving.
        keep: share of the settings that survives a round.
        limit: see `cycle`.
        chunk: most settings to run at once, all trials of each together, as one compiled program.
        progress: called between chunks with the number of settings done and the number in this round.
        key: the same for all settings, so that they are compared on equal terms.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import ETKF, Inflated, Lorenz63, Observation, make_trials
        >>> model, observation = Lorenz63(window=0.25), Observation([0, 1, 2], 1.0)
        >>> trials = make_trials(
        ...     model, observation, 40, state=jnp.ones(3), truths=2, members=5, key=jax.random.key(0)
        ... )
        >>> found = tune(
        ...     lambda inflation: Inflated(ETKF(), inflation), {"inflation": [0.1, 1.05]},
        ...     model, observation, trials, burn_in=10, key=jax.random.key(1),
        ... )
        >>> found.best["inflation"], found.surface["score"].dims
        (1.05, ('inflation',))
    """
    names = tuple(settings)
    values = [np.asarray(settings[name], float) for name in names]
    if not names or any(v.ndim != 1 or not v.size for v in values):
        raise ValueError(f"expected at least one value for each setting, got {dict(settings)}")
    length = trials.twins.truth.shape[1]
    if not rungs >= 1 or not 0 < keep < 1 or not chunk >= 1:
        raise ValueError(
            f"rungs and chunk are at least 1 and keep lies between 0 and 1, got {rungs}, {chunk} and {keep}"
        )
    if burn_in >= round(length * keep ** (rungs - 1)):
        raise ValueError(
            f"the first rung has {round(length * keep ** (rungs - 1))} of {length} windows, "
            f"no more than the burn-in of {burn_in}"
        )

    @eqx.filter_jit
    def judge(part: Float[Array, "c p"], shown: Trials) -> tuple[Float[Array, "c r"], Bool[Array, "c r"]]:
        def one(row: Float[Array, "p"], trial: Trials) -> tuple[Array, Array]:
            run = cycle(
                build(**dict(zip(names, row, strict=True))),
                model,
                observation,
                trial.ensembles,
                trial.twins.observations,
                record=keep_mean,
                limit=limit,
                key=jax.random.fold_in(key, trial.numbers),
            )
            return jnp.mean(rmse(trial.twins.truth, run.kept)[burn_in:]), run.diverged >= 0

        return jax.vmap(lambda row: jax.vmap(lambda trial: one(row, trial))(shown))(part)

    table = np.array(list(itertools.product(*values)))
    score, diverged = np.full(len(table), np.inf), np.ones(len(table))
    windows = np.zeros(len(table), int)
    alive = np.arange(len(table))
    for rung in range(rungs):
        span = round(length * keep ** (rungs - 1 - rung))
        shown = first_windows(trials, span)
        # Chunks of one size spare a compilation; even ones leave little to fill up with repeats.
        even = -(-len(alive) // -(-len(alive) // chunk))
        for begin in range(0, len(alive), even):
            part = alive[begin : begin + even]
            padded = np.resize(part, even)
            errors, lost = (np.asarray(x)[: len(part)] for x in judge(jnp.asarray(table[padded], float), shown))
            diverged[part], windows[part] = lost.mean(axis=1), span
            kept = np.where(lost | ~np.isfinite(errors), np.nan, errors)
            some = np.isfinite(kept).any(axis=1)
            score[part] = np.where(some, np.nansum(kept, axis=1) / np.maximum(np.isfinite(kept).sum(axis=1), 1), np.inf)
            if progress is not None:
                progress(begin + len(part), len(alive))
        ranked = alive[np.lexsort((score[alive], diverged[alive]))]
        alive = ranked if rung == rungs - 1 else ranked[: max(1, round(len(ranked) * keep))]
    best, winner = dict(zip(names, table[alive[0]].tolist(), strict=True)), float(score[alive[0]])
    surface = _surface(names, values, score, diverged, windows)
    return Tuning(best, winner, surface.assign_attrs({f"best_{k}": v for k, v in best.items()}, best_score=winner))


def _surface(
    names: tuple[str, ...], values: list[np.ndarray], score: np.ndarray, diverged: np.ndarray, windows: np.ndarray
) -> xr.Dataset:
    """Scores on the grid of settings."""
    shape = tuple(v.size for v in values)
    surface = xr.Dataset(
        {
            "score": (names, score.reshape(shape), {"long_name": "RMSE of the analysis mean, diverged runs left out"}),
            "diverged": (names, diverged.reshape(shape), {"long_name": "share of runs that diverged"}),
            "windows": (names, windows.reshape(shape), {"long_name": "windows the setting was judged on"}),
        },
        coords=dict(zip(names, values, strict=True)),
    )
    return surface.assign_attrs(title="Settings tried, and how they did")
