"""What few rows leave open about a process of the whole table: its shape, length scales, variances and noise.

A joint distribution of many values under the best hyperparameters alone would be too sure of how they are correlated. From few
rows the hyperparameters are therefore drawn from their posterior: a normal law round the best ones of each shape (Laplace's
approximation), weighed by the likelihood times the priors, and thinned to equally probable draws.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from bieqno.regression.pretrained.ard import ARDProcess
from bieqno.regression.pretrained.likelihood import SHAPES, Likelihood

MOST_ROWS = 256  # from more rows than these the hyperparameters are taken to be known
_DRAWS = 32  # of each shape
_FAR = 8.0  # a shape whose best log-likelihood is so far below that of the best is left out
_STEP = 1e-3  # of the differences of gradients
_LEAST_CURVATURE = 0.25  # draws do not go farther than two in the logarithm


def draw_processes(
    process: ARDProcess, count: int, *, noise: float | None = None, tied: bool = False
) -> tuple[ARDProcess, ...]:
    """Return equally probable processes, given the rows of one, that differ in their hyperparameters.

    Of many rows the process itself is the only one. `noise` and `tied` are those that it was fitted with.

    Example:
        >>> x = np.linspace(-1, 1, 12)[:, None]
        >>> process = ARDProcess(x, np.sin(3 * x[:, 0]), np.zeros(1), np.array([0.0, -3.0, -5.0]), "eq")
        >>> len(draw_processes(process, 4))
        4
    """
    if len(process.targets) > MOST_ROWS or count == 1:
        return (process,)
    likelihood = Likelihood(process.inputs, process.targets, noise)
    best = np.concatenate([process.log_lengths, process.log_variances])
    own = likelihood.climb(process.shape, best, 10, tied)
    others = likelihood.climb_others(process.shape, own, 10, tied)
    climbed = {shape: others.get(shape, own) for shape in SHAPES}
    highest = max(end.value for end in climbed.values())
    random = np.random.default_rng(0)
    draws: list[tuple[str, np.ndarray]] = []
    weights: list[np.ndarray] = []
    for shape in (shape for shape in SHAPES if climbed[shape].value > highest - _FAR):
        found, log_weight = _around(likelihood, shape, climbed[shape].theta, tied, random)
        draws += [(shape, theta) for theta in found]
        weights.append(log_weight)
    # Systematic resampling: each as often as its weight says, rounded up or down.
    share = np.cumsum(softmax(np.concatenate(weights)))
    chosen = [draws[i] for i in np.searchsorted(share, (np.arange(count) + 0.5) / count * share[-1])]
    return tuple(ARDProcess(process.inputs, process.targets, t[:-3], t[-3:], shape) for shape, t in chosen)


def _around(
    likelihood: Likelihood, shape: str, best: Float[np.ndarray, "p"], tied: bool, random: np.random.Generator
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, "n"]]:
    """Draw hyperparameters round the best ones, and return them with the logarithms of their importance weights."""
    low, high = np.array(likelihood.bounds).T
    moves = likelihood.moves(tied)
    moves = moves[(moves * (high - low)).any(axis=1)]  # a noise that is known has nothing to draw
    steps = _STEP * moves
    slopes = [likelihood(shape, best + step)[1] - likelihood(shape, best - step)[1] for step in steps]
    H = -np.array(slopes) @ moves.T / (2 * _STEP)
    curvature, axes = np.linalg.eigh((H + H.T) / 2)
    deviation = 1 / np.sqrt(np.maximum(curvature, _LEAST_CURVATURE))
    z = random.standard_normal((_DRAWS, len(moves)))
    found = np.clip(best + (z * deviation) @ axes.T @ moves, low, high)
    values = np.array([likelihood(shape, theta)[0] for theta in found])
    return found, values + np.sum(z**2, axis=1) / 2 + np.sum(np.log(deviation))
