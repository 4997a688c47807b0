"""Finding the settings of a filter, on truths that are not those it will be tested on."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno.assimilation.protocols import Filter
from bieqno.assimilation.system import System
from bieqno.assimilation.trials import Assimilation, Trials, first_windows
from bieqno.assimilation.twin import Record, Twin, keep_mean
from bieqno.compilation import quick_jit
from bieqno.scores import rmse


class Tuning(NamedTuple):
    """The best settings, and the scores of all that were tried; `tuning_dataset` makes a labelled surface of it.

    A score is the loss, by default the error of the analysis mean, averaged over windows and truths without diverged runs;
    infinite if all did.
    """

    best: dict[str, float]
    score: float  # of the best
    names: tuple[str, ...]  # of the settings, one per axis of the arrays below
    values: tuple[Float[np.ndarray, "_"], ...]  # those tried of each setting
    scores: Float[np.ndarray, "..."]
    diverged: Float[np.ndarray, "..."]  # share of runs that diverged
    windows: Int[np.ndarray, "..."]  # number of windows that each combination was run for


def error_of_mean(twin: Twin, kept: PyTree[Any]) -> Float[Array, "T"]:
    """Return the error of the analysis mean in each window, as `keep_mean` keeps it."""
    return rmse(twin.truth, kept)


def negative_log_score(twin: Twin, kept: PyTree[Any]) -> Float[Array, "T"]:
    """Return the negative log score of each window, as `keep_scores` keeps it."""
    return jnp.negative(kept["log_score"])


def tune(
    build: Callable[..., Filter],
    settings: Mapping[str, Sequence[float]],
    system: System,
    trials: Trials,
    *,
    burn_in: int,
    rungs: int = 1,
    keep: float = 1 / 3,
    chunk: int = 8,
    progress: Callable[[int, int], None] | None = None,
    record: Record | type[Record] = keep_mean,
    loss: Callable[[Twin, PyTree[Any]], Float[Array, "T"]] = error_of_mean,
    key: PRNGKeyArray,
) -> Tuning:
    """Try all combinations of settings on all trials and take the best.

    With more than one rung by successive halving: all settings run over the first windows only, the best
    share `keep` of them over ``1 / keep`` times as many, and so on up to the whole series. Settings with fewer diverged
    runs come first, then those with the smaller error.

    `build` makes the filter from settings given by name; these are traced, so that all share one compilation. At most
    `chunk` settings run at once, all trials of each together, and all with the same key; `progress` is called between
    chunks with the number of settings done and the number in this round. Windows of the burn-in are not scored.

    The `loss` of each window is found from the twin and from what the `record` kept: by default the error of the analysis
    mean; with ``record=keep_scores`` and ``loss=negative_log_score`` how badly the observations were predicted. A class of
    records, such as `KeepScores`, is made anew of each filter.

    Example:
        >>> from bieqno.assimilation import ETKF, Inflated, Lorenz63, Observation, make_trials
        >>> system = System(Lorenz63(window=0.25), Observation([0, 1, 2], 1.0), jnp.ones(3))
        >>> trials = make_trials(system, 40, truths=2, members=5, key=jax.random.key(0))
        >>> found = tune(
        ...     lambda inflation: Inflated(ETKF(), inflation), {"inflation": [0.1, 1.05]},
        ...     system, trials, burn_in=10, key=jax.random.key(1),
        ... )
        >>> found.best["inflation"], found.names, found.scores.shape
        (1.05, ('inflation',), (2,))
    """
    names = tuple(settings)
    values = tuple(np.asarray(settings[name], float) for name in names)
    table = _grid(build, names, values)
    length = trials.twins.truth.shape[1]
    if not rungs >= 1 or not 0 < keep < 1 or not chunk >= 1:
        raise ValueError(f"rungs and chunk are at least 1 and keep is between 0 and 1, got {rungs}, {chunk} and {keep}")
    shortest = round(length * keep ** (rungs - 1))
    if burn_in < 0:
        raise ValueError(f"a burn-in is a number of windows, got burn_in={burn_in}")
    if burn_in >= shortest:
        raise ValueError(f"the first rung has {shortest} of {length} windows, no more than the burn-in of {burn_in}")
    score, diverged = np.full(len(table), np.inf), np.ones(len(table))
    windows = np.zeros(len(table), int)
    alive = np.arange(len(table))
    judge = _Judge(build, names, system, burn_in, record, loss, key)
    for rung in range(rungs):
        span = round(length * keep ** (rungs - 1 - rung))
        shown = first_windows(trials, span)
        # Chunks of one size spare a compilation; even ones leave little to fill up with repeats.
        even = -(-len(alive) // -(-len(alive) // chunk))
        for begin in range(0, len(alive), even):
            part = alive[begin : begin + even]
            rows = jnp.asarray(table[np.resize(part, even)], float)
            errors, lost = (np.asarray(x)[: len(part)] for x in quick_jit(judge)(rows, shown))
            lost = lost | ~np.isfinite(errors)
            diverged[part], windows[part] = lost.mean(axis=1), span
            sound = ~lost
            total = np.sum(errors, axis=1, where=sound)
            score[part] = np.where(sound.any(axis=1), total / np.maximum(sound.sum(axis=1), 1), np.inf)
            if progress is not None:
                progress(begin + len(part), len(alive))
        ranked = alive[np.lexsort((score[alive], diverged[alive]))]
        alive = ranked if rung == rungs - 1 else ranked[: max(1, round(len(ranked) * keep))]
    best = dict(zip(names, table[alive[0]].tolist(), strict=True))
    shape = tuple(v.size for v in values)
    surfaces = (x.reshape(shape) for x in (score, diverged, windows))
    return Tuning(best, float(score[alive[0]]), names, values, *surfaces)


class _Judge(eqx.Module):
    """Errors and divergences of filters, one row of settings each, on all trials."""

    build: Callable[..., Filter]
    names: tuple[str, ...] = eqx.field(static=True)
    system: System
    burn_in: int = eqx.field(static=True)
    record: Record | type[Record]
    loss: Callable[[Twin, PyTree[Any]], Float[Array, "T"]]
    key: PRNGKeyArray

    def __call__(self, rows: Float[Array, "c p"], trials: Trials) -> tuple[Float[Array, "c r"], Bool[Array, "c r"]]:
        def one(row: Float[Array, "p"], trial: Trials) -> tuple[Array, Array]:
            filter = self.build(**dict(zip(self.names, row, strict=True)))
            make: Any = self.record
            record = make(filter) if isinstance(make, type) else make
            run = Assimilation(filter, self.system, record, self.key)(trial)
            return jnp.mean(self.loss(trial.twins, run.kept)[self.burn_in :]), run.diverged >= 0

        return jax.vmap(lambda row: jax.vmap(lambda trial: one(row, trial))(trials))(rows)


def _grid(
    build: Callable[..., Filter], names: tuple[str, ...], values: tuple[Float[np.ndarray, "_"], ...]
) -> Float[np.ndarray, "c p"]:
    """Return all combinations of settings, one row each; each is built once, so that a filter can refuse its settings."""
    if not names or any(v.ndim != 1 or not v.size for v in values):
        raise ValueError(f"expected at least one value for each setting, got {dict(zip(names, values, strict=True))}")
    table = np.array(list(itertools.product(*values)))
    for row in table:
        build(**dict(zip(names, row.tolist(), strict=True)))
    return table
