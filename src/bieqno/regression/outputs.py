"""A process for each output of a table: conditioned from a prior, or trained on the data alone."""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bieqno.cli.progress import training_bar
from bieqno.regression.pretrained import MAX_DIMENSION, NEIGHBOURS, ZeroShot, condition_prior, fine_tune, prior_named
from bieqno.regression.settings import Settings
from bieqno.regression.trained.fitted import FittedProcess
from bieqno.regression.trained.fitting import fit_process


def from_prior(
    name: str,
    X: Float[np.ndarray, "n d"],
    columns: Float[np.ndarray, "n outputs"],
    settings: Settings,
    *,
    further: float,
    verbose: bool,
) -> tuple[tuple[ZeroShot, ...], int]:
    """Condition the prior of that name on each output, and fine-tune it if that is asked for and helps.

    Args:
        name: of the prior.
        X: inputs.
        columns: targets, one column an output.
        settings: of the regressor.
        further: variance of further noise that new values will not have.
        verbose: whether to show a progress bar.

    Returns:
        A process for each output, and the steps of the fine-tuning, the largest over the outputs.
    """
    places = len(np.unique(X, axis=0))
    if len(X) > 4 * places:
        warnings.warn(
            f"{len(X)} rows are at {places} places only, and a prior looks at the {NEIGHBOURS} nearest rows: it hardly "
            "sees other places; average the rows of each place, or use prior=None",
            stacklevel=3,
        )
    process = prior_named(name)
    if np.count_nonzero(np.ptp(X, axis=0)) > MAX_DIMENSION:
        process = prior_named("experts")  # of so many inputs nothing was learned
    found = [
        condition_prior(process, X, column, noise=settings.noise, further=further, same_units=settings.same_units)
        for column in columns.T
    ]
    if settings.fine_tune:
        with training_bar("fine-tune", visible=verbose) as on_progress:
            found = [fine_tune(one, on_progress=on_progress) for one in found]
    return tuple(found), max(process.steps for process in found)


def trained(
    X: Float[np.ndarray, "n d"],
    columns: Float[np.ndarray, "n outputs"],
    noise_variance: Float[np.ndarray, "n"],
    settings: Settings,
    *,
    uncertain: bool,
    random: np.random.RandomState,
    fold_seed: int,
    previous: Sequence[FittedProcess | ZeroShot] | None,
    verbose: bool,
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
        verbose: whether to show a progress bar.

    Returns:
        A process for each output, and the training steps whose weights are used, the largest over the outputs.
    """
    if settings.fine_tune:
        raise ValueError("fine_tune needs a prior to begin with, and prior is None")
    if previous is not None and len(previous) != columns.shape[1]:
        raise ValueError(f"warm_start cannot go on from {len(previous)} outputs with {columns.shape[1]}")
    processes, steps = [], []
    for i, column in enumerate(columns.T):
        start = None if previous is None else previous[i]
        if isinstance(start, ZeroShot):
            raise ValueError("warm_start cannot go on from a fit with a prior, in which nothing was trained")
        label = "fit" if columns.shape[1] == 1 else f"fit {i + 1}/{columns.shape[1]}"
        with training_bar(label, visible=verbose) as on_progress:
            process, result = fit_process(
                X, column, noise_variance, settings, uncertain=uncertain, seed=int(random.randint(2**31 - 1)),
                fold_seed=fold_seed, start=start, on_progress=on_progress,
            )  # fmt: skip
        processes.append(process)
        steps.append(result.best_step)
    return tuple(processes), max(steps)
