"""The joint distribution at many points as a mixture of what may hold for all of them at once.

The mean and the variance of each point are those of `predict`. What the values have in common is open: how long waves are, how
rough the function is, how strong the noise, and whether its correlations are those of a process of the whole table at all. Each
hypothesis is a chain of Gaussian conditionals (`joint`), and the density of many values is the mixture of their densities: by the
chain rule, each value tells which of them hold, as it would if it were added to the data. There are three kinds:

- the process of the whole table under other hyperparameters, with its own mean;
- the stated marginals, correlated as in that process, with other variances of function and noise;
- the stated marginals alone, likewise. It is right where experts that are not Gaussian count, as at jumps.

The best hyperparameters alone would be too sure of how values are correlated. From few rows they are therefore drawn from their
posterior: a normal law round the best ones of each shape (Laplace's approximation), weighed by the likelihood times the priors,
and thinned to equally probable draws.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import logsumexp, softmax

from bieqno.gaussian import AbstractGaussian
from bieqno.regression.pretrained.ard import ARDProcess
from bieqno.regression.pretrained.joint import Block, ChainGaussian, chains, unlinked
from bieqno.regression.pretrained.joint_tails import TailedGaussian
from bieqno.regression.pretrained.likelihood import SHAPES, Likelihood

# Prior probabilities of the three kinds where the process has no weight among the experts, and where it has all of it.
_UNTRUSTED, _TRUSTED = np.array([0.05, 0.65, 0.3]), np.array([0.75, 0.2, 0.05])
_SPREAD = 0.5  # of the logarithms of the standard deviations of function and noise, independently of each other
_COMMON = np.arange(-2.0, 3.0)  # levels of what they have in common, in deviations, and of their ratio
_RATIO = np.sqrt(1.5) * np.arange(-1.0, 2.0)
_SHARES = np.exp(-(_COMMON**2) / 2) / np.sum(np.exp(-(_COMMON**2) / 2))
_RATIOS = np.exp(np.sqrt(2) * _SPREAD * _RATIO)
# On average over all levels both variances are those that are stated.
_FACTORS = np.exp(np.sqrt(2) * _SPREAD * _COMMON)
_FACTORS /= np.mean(_RATIOS) * np.sum(_SHARES * _FACTORS)
MOST_ROWS = 256  # from more rows than these the hyperparameters are taken to be known
_DRAWS = 32  # of each shape
_FAR = 8.0  # a shape whose best log-likelihood is so far below that of the best is left out
_STEP = 1e-3  # of the differences of gradients
_LEAST_CURVATURE = 0.25  # draws do not go farther than two in the logarithm


class JointMixture(AbstractGaussian):
    """A mixture of joint Gaussians over the same n values; NumPy's arrays.

    Example:
        >>> one = ChainGaussian.dense(np.zeros(2), np.eye(2))
        >>> other = ChainGaussian.dense(np.zeros(2), np.array([[1.0, 0.9], [0.9, 1.0]]))
        >>> both = JointMixture(np.log([0.5, 0.5]), (one, other))
        >>> both.covariance().round(6).tolist()
        [[1.0, 0.45], [0.45, 1.0]]
        >>> bool(both.condition(np.array([0]), np.array([2.0])).mean[0] > 0.8)
        True
    """

    log_weights: Float[np.ndarray, "k"]
    parts: tuple[ChainGaussian | TailedGaussian, ...]
    mean: Float[np.ndarray, "n"]
    deviation: Float[np.ndarray, "n"]

    def __init__(self, log_weights: Float[np.ndarray, "k"], parts: Sequence[ChainGaussian | TailedGaussian]) -> None:
        weights, means = np.exp(log_weights), np.stack([part.mean for part in parts])
        self.log_weights, self.parts, self.mean = log_weights, tuple(parts), weights @ means
        self.deviation = np.sqrt(weights @ (np.stack([part.variance for part in parts]) + (means - self.mean) ** 2))

    @property
    def size(self) -> int:
        """Number of points n."""
        return self.parts[0].size

    @property
    def variance(self) -> Float[np.ndarray, "n"]:
        """Variance of each point."""
        return self.deviation**2

    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Return the dense covariance matrix, O(n^2) memory."""
        total = np.zeros((self.size, self.size))
        blocks, correlation = None, total
        for weight, part in zip(np.exp(self.log_weights), self.parts, strict=True):
            if part.blocks is not blocks:  # those of the same correlations follow one another
                blocks = part.blocks
                correlation = ChainGaussian(part.mean, np.ones(self.size), blocks).covariance()
            apart = part.mean - self.mean
            total += weight * (part.covariance_of(correlation) + np.outer(apart, apart))
        return total

    def log_prob(self, value: Any) -> float:
        """Return the logarithm of the joint density at `value`."""
        return float(logsumexp(self.log_weights + np.array([part.log_prob(value) for part in self.parts])))

    def sample(self, count: int, *, key: PRNGKeyArray) -> Float[np.ndarray, "count n"]:
        """Draw joint samples, one per row, each of one part."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        chosen = random.choice(len(self.parts), count, p=np.exp(self.log_weights))
        draws = np.empty((count, self.size))
        for i in np.unique(chosen).tolist():
            own = np.flatnonzero(chosen == i)
            draws[own] = self.parts[i].sample(len(own), key=jax.random.fold_in(key, i))
        return draws

    def marginal(self, indices: Any) -> "JointMixture":
        """Return the joint distribution of some of the points, in the order of `indices`."""
        return JointMixture(self.log_weights, tuple(part.marginal(indices) for part in self.parts))

    def condition(self, indices: Any, values: Any) -> "JointMixture":
        """Return the distribution of the other points, in their order, given the values of those of `indices`."""
        told = np.array([part.marginal(indices).log_prob(np.asarray(values, np.float64)) for part in self.parts])
        log_weights = self.log_weights + told
        parts = tuple(part.condition(indices, values) for part in self.parts)
        return JointMixture(log_weights - logsumexp(log_weights), parts)


def join(
    processes: Sequence[ARDProcess],
    points: Float[np.ndarray, "n d"],
    mean: Float[np.ndarray, "n"],
    std: Float[np.ndarray, "n"],
    noise: Float[np.ndarray, "n"],
    kept: float = 1.0,
    trust: float = 0.5,
    tail: float = 0.0,
) -> JointMixture:
    """Join marginals at points, in which so much of the variance is `noise`, by equally probable processes.

    Of the noise of the processes, that of their rows, new values have the share `kept`: known errors of the rows are not theirs.
    `trust` is the weight of the process among the experts that have stated the marginals, `tail` that of their law.
    """
    of_process, correlated, independent = (1 - trust) * _UNTRUSTED + trust * _TRUSTED
    noise = np.minimum(noise, std**2)
    # The variances of function and noise by their ratio and their product, so that chains of one ratio share their blocks.
    variants = [(noise / ratio, (std**2 - noise) * ratio) for ratio in _RATIOS]
    predicted = [process.predict(points) for process in processes]
    variances = [one.variance - (1 - kept) * p.noise for one, p in zip(predicted, processes, strict=True)]
    centre = np.mean([one.mean for one in predicted], axis=0)
    squares = [v + (one.mean - centre) ** 2 for v, one in zip(variances, predicted, strict=True)]
    spread = np.sqrt(np.mean(squares, axis=0))
    alone = unlinked(len(mean))
    found: list[tuple[float, ChainGaussian | TailedGaussian]] = []

    def add(weight: float, mean: np.ndarray, std: np.ndarray, blocks: tuple[Block, ...]) -> None:
        own = ChainGaussian(mean, std, blocks) if not tail else TailedGaussian.of(mean, std, blocks, tail)
        found.append((weight, own))

    def scaled(weight: float, variance: np.ndarray, blocks: tuple[Block, ...]) -> None:
        for share, factor in zip(_SHARES, _FACTORS, strict=True):
            add(weight / len(variants) * share, mean, np.sqrt(factor * variance), blocks)

    for a, b in variants:
        scaled(independent, a + b, alone)
    for process, own, variance in zip(processes, predicted, variances, strict=True):
        shares = [*(b / (a + b) for a, b in variants), 1 - kept * process.noise / variance]
        *others, blocks = chains(process, points, shares)
        for (a, b), other in zip(variants, others, strict=True):
            scaled(correlated / len(processes), a + b, other)
        moved = mean + std * (own.mean - centre) / spread
        add(of_process / len(processes), moved, std * np.sqrt(variance) / spread, blocks)
    return JointMixture(np.log([weight for weight, _ in found]), [part for _, part in found])


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
