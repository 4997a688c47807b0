"""A process for each output of a table: conditioned from a prior, or trained on the data alone."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from bieqno.regression.pretrained import MAX_DIMENSION, NEIGHBOURS, ZeroShot, condition_prior, fine_tune, prior_named
from bieqno.regression.trained.fitted import FittedProcess
from bieqno.regression.trained.fitting import TrainingSettings, fit_process
from bieqno.training import Progress


def from_prior(
    name: str,
    X: Float[np.ndarray, "n d"],
    columns: Float[np.ndarray, "n outputs"],
    *,
    noise: float | None,
    further: float,
    same_units: bool,
    tuned: bool,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[tuple[ZeroShot, ...], int]:
    """Condition the prior of that name on each output, and fine-tune it if that is asked for and helps.

    Args:
        name: of the prior.
        X: inputs.
        columns: targets, one column an output.
        noise: standard deviation of the noise, if it is known.
        further: variance of further noise that new values will not have.
        same_units: whether all inputs have one unit.
        tuned: whether to fine-tune.
        on_progress: as in `bieqno.fit`.

    Returns:
        A process for each output, and the steps of the fine-tuning, the largest over the outputs.
    """
    places = len(np.unique(X, axis=0))
    if len(X) > 4 * places:
        warnings.warn(
            f"{len(X)} rows are at {places} places only, and PretrainedGGPRegressor looks at the {NEIGHBOURS} nearest rows: it hardly "
            "sees other places; average the rows of each place, or use GGPRegressor",
            stacklevel=3,
        )
    process = prior_named(name)
    if np.count_nonzero(np.ptp(X, axis=0)) > MAX_DIMENSION:
        process = prior_named("experts")  # of so many inputs nothing was learned
    found = [
        condition_prior(process, X, column, noise=noise, further=further, same_units=same_units) for column in columns.T
    ]
    if tuned:
        found = [fine_tune(one, on_progress=on_progress) for one in found]
    return tuple(found), max(process.steps for process in found)


def trained(
    X: Float[np.ndarray, "n d"],
    columns: Float[np.ndarray, "n outputs"],
    noise_variance: Float[np.ndarray, "n"],
    settings: TrainingSettings,
    *,
    uncertain: bool,
    random: np.random.RandomState,
    fold_seed: int,
    previous: Sequence[FittedProcess] | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[tuple[FittedProcess, ...], int]:
    """Train an ensemble on each output.

    Args:
        X: inputs.
        columns: targets, one column an output.
        noise_variance: further noise of each row.
        settings: of the regressor.
        uncertain: whether the process sees that noise beside each observation.
        random: where the seeds of weights and splits come from.
        fold_seed: decides which points each member holds out.
        previous: the processes of an earlier fit, to go on from; None to start anew.
        on_progress: as in `bieqno.fit`.

    Returns:
        A process for each output, and the training steps whose weights are used, the largest over the outputs.
    """
    if previous is not None and len(previous) != columns.shape[1]:
        raise ValueError(f"warm_start cannot go on from {len(previous)} outputs with {columns.shape[1]}")
    processes, steps = [], []
    for i, column in enumerate(columns.T):
        start = None if previous is None else previous[i]
        process, result = fit_process(
            X, column, noise_variance, settings, uncertain=uncertain, seed=int(random.randint(2**31 - 1)),
            fold_seed=fold_seed, start=start, on_progress=on_progress,
        )  # fmt: skip
        processes.append(process)
        steps.append(result.best_step)
    return tuple(processes), max(steps)
