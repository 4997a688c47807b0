"""The marginal likelihood of a Gaussian process with a length scale for each input, and its climb by L-BFGS.

Gradients are in closed form: that by all length scales costs one product of a matrix with the inputs. Wide priors keep apart
what few rows of many inputs cannot: each input that matters has its price, as in Schwarz's criterion, and so have rough shapes,
for both explain any noise; the noise has a prior with heavy tails.

Correlations, and the inverse that gradients need, are computed in single precision, in half the time, where the noise is so
strong that it hides the rounding. The decomposition is in double precision always.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, spotri
from scipy.optimize import minimize

from bieqno.regression.data import MIN_NOISE

SHAPES = ("matern52", "matern32", "eq", "matern12")
CONSTANT = 1.0  # variance of the constant mean
_WIDE = 9.0  # deviation of a prior of a logarithm that hardly says anything
_TYPICAL_NOISE, _NOISE_WIDTH = 0.2, 1.5  # variance, and deviation of its logarithm: a prior with heavy tails
_LOG_SOME_NOISE = math.log(0.03)
_MATTERS = 10.0  # a length scale from which on an input hardly matters
_COST = {"matern32": 3.0, "matern12": 8.0}  # of rough shapes, which among many inputs explain noise
_LEAST_LOG_NOISE = 2 * math.log(MIN_NOISE)
_SIZES = 1e-6, 4.0  # least and largest inverse curvature that is taken over from climb to climb
_HIDES_ROUNDING = 1e-3  # variance of noise from which on single precision does


class Climbed(NamedTuple):
    """The end of a climb: the value, where it is, and as rows the axes along which the curvature that was met is minus one."""

    value: float
    theta: Float[np.ndarray, "p"]
    axes: Float[np.ndarray, "r p"]

    def of_more(self, factor: float) -> "Climbed":
        """Return it for so many times as many rows, whose likelihood has so many times the curvature."""
        return self._replace(axes=self.axes / math.sqrt(factor))


class Likelihood:
    """The marginal likelihood of some rows, times the priors, as a function of the logarithms of the hyperparameters."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, noise: float | None) -> None:
        d = inputs.shape[1]
        self.inputs, self.targets, self.linear = inputs, targets, inputs @ inputs.T
        self.columns = np.concatenate([targets[:, None], np.ones((len(targets), 1)), inputs], axis=1)
        self.known = None if noise is None else max(2 * math.log(max(noise, MIN_NOISE)), _LEAST_LOG_NOISE)
        # Where the search starts, and wide normal priors round it.
        lengths = (math.log(1.5) + math.log(d) / 2, 2.5)
        self.prior = np.array([*[lengths] * d, (0, 1.5), (math.log(0.05), 2), (math.log(_TYPICAL_NOISE), _WIDE)])
        noise_bounds = (_LEAST_LOG_NOISE, math.log(2)) if self.known is None else (self.known, self.known)
        self.bounds = [*[(math.log(3e-3), math.log(1e3))] * d, (-7, 5), (-12, 3), noise_bounds]

    def relaxed(self) -> "Likelihood":
        """Return the likelihood with priors that hardly say anything but what inputs that matter and rough shapes cost.

        From few rows of several inputs narrow priors find the way. At its end they hold inputs that do not matter too near.
        """
        wide = Likelihood(self.inputs, self.targets, None)
        wide.known, wide.bounds, wide.prior[:, 1] = self.known, self.bounds, _WIDE
        return wide

    def start(self, length: float, noise: float) -> Float[np.ndarray, "p"]:
        """Return a start, given the common length over that of the prior, and the variance of the noise."""
        theta = self.prior[:, 0].copy()
        theta[:-3] += math.log(length)
        theta[-1] = math.log(noise) if self.known is None else self.known
        return theta

    def climb(
        self, shape: str, start: np.ndarray, steps: int, tied: bool = False, axes: np.ndarray | None = None
    ) -> "Climbed":
        """Return the highest value that is found from a start; `tied` moves all length scales alike.

        `axes` are those of an earlier climb from which this one starts: along them, its curvature is nearly one.
        """
        low, high = np.array(self.bounds).T
        start = np.clip(start, low, high)
        moves = self.moves(tied) if axes is None else axes
        limits = None
        if axes is None:
            limits = np.stack([low - start, high - start], axis=1)
            limits = np.concatenate([[[-5.0, 5.0]], limits[-3:]]) if tied else limits

        def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
            moved = start + free @ moves
            theta = np.clip(moved, low, high)
            value, gradient = self(shape, theta)
            return -value, -moves @ (gradient * (theta == moved))

        options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-5 if axes is None else 2e-5}
        end = minimize(loss, np.zeros(len(moves)), jac=True, method="L-BFGS-B", bounds=limits, options=options)
        found = end.hess_inv.todense()
        size, directions = np.linalg.eigh((found + found.T) / 2)
        axes = (np.sqrt(np.clip(size, *_SIZES)) * directions).T @ moves
        return Climbed(-float(end.fun), np.clip(start + end.x @ moves, low, high), axes)

    def climb_others(
        self, shape: str, end: "Climbed", steps: int, tied: bool = False, axes: np.ndarray | None = None
    ) -> "dict[str, Climbed]":
        """Return the ends of climbs by every other shape from the end of one.

        What a rough shape follows is noise to a smooth one. Begun without noise it is next to impossible under that, and the
        first step leads to where all is noise; if the smoothest ends below, it is begun again with noise.
        """
        found = {other: self.climb(other, end.theta, steps, tied, axes) for other in SHAPES if other != shape}
        if "eq" in found and found["eq"].value < end.value:
            noisy = end.theta.copy()
            noisy[-1] = max(noisy[-1], _LOG_SOME_NOISE)
            found["eq"] = max(found["eq"], self.climb("eq", noisy, steps, tied), key=lambda climbed: climbed.value)
        return found

    def moves(self, tied: bool) -> Float[np.ndarray, "r p"]:
        """Return rows that move the hyperparameters: each by itself, or all length scales together."""
        size = len(self.bounds)
        moves = np.eye(size)
        if not tied:
            return moves
        return np.concatenate([np.ones((1, size)) * (np.arange(size) < size - 3), moves[size - 3 :]])

    def __call__(self, shape: str, theta: Float[np.ndarray, "p"]) -> tuple[float, Float[np.ndarray, "p"]]:
        """Return the value and its gradient."""
        y = self.targets
        scaled = self.inputs * np.exp(-theta[:-3])
        variance, slope, noise = np.exp(theta[-3:])
        precision = np.float32 if noise > _HIDES_ROUNDING else np.float64
        k, k_dot = correlation(shape, squared_distances(scaled).astype(precision, copy=False))
        K = slope * self.linear
        K += CONSTANT
        k *= variance
        K += k
        K[np.diag_indices_from(K)] += noise
        L, failed = dpotrf(K.T, lower=1, overwrite_a=1)  # transposed it is decomposed in its place
        if failed:
            return -1e10, np.zeros(len(theta))
        solved = dpotrs(L, self.columns, lower=1)[0]
        z = (theta - self.prior[:, 0]) / self.prior[:, 1]
        many = min((scaled.shape[1] - 1) / 3, 1.0)
        cost = (0.25 + 0.75 * many) * _COST.get(shape, 0)
        value = -cost - 0.5 * y @ solved[:, 0] - np.sum(np.log(np.diag(L))) - 0.5 * z @ z
        invert = spotri if precision is np.float32 else dpotri
        half = invert(L.astype(precision, copy=False), lower=1, overwrite_c=1)[0].T
        gradient = self._slopes(theta, scaled, solved, half, k_dot)
        gradient -= z / self.prior[:, 1]
        # Each input that matters costs two or three, as in Schwarz's criterion: many inputs explain any noise.
        relevance = (_MATTERS * np.exp(-theta[:-3])) ** 2
        t = (theta[-1] - math.log(_TYPICAL_NOISE)) / _NOISE_WIDTH
        value -= many * np.sum(np.log1p(relevance)) + math.log1p(t**2)
        gradient[:-3] += many * 2 * relevance / (1 + relevance)
        gradient[-1] -= 2 * t / (1 + t**2) / _NOISE_WIDTH
        return value, gradient

    def _slopes(
        self, theta: np.ndarray, scaled: np.ndarray, solved: np.ndarray, half: np.ndarray, k_dot: np.ndarray
    ) -> Float[np.ndarray, "p"]:
        """Return the gradient of the likelihood, given the upper half of the inverse covariance, the rest of it zero.

        With ``A = alpha alpha^T - K^-1`` the slope by a hyperparameter is half the sum of A times K's derivative. Of matrices
        of all pairs of rows only one is made: the others are multiplied with a few columns instead. `solved` is the inverse
        times targets, ones and inputs.
        """
        variance, slope, noise = np.exp(theta[-3:])
        alpha = solved[:, 0]
        products = (alpha @ self.columns) ** 2 - np.sum(self.columns * solved, axis=0)
        by_noise = noise * (alpha @ alpha - np.sum(np.diag(half), dtype=np.float64))
        by_slope = slope * np.sum(products[2:])
        # Pairs by the lengths: |x_i - x_j|^2 by its three terms, of which pairs of a row with itself have nothing.
        columns = np.concatenate([np.ones((len(alpha), 1)), scaled], axis=1).astype(half.dtype)
        half *= k_dot
        weight = alpha.astype(half.dtype)[:, None]
        M = weight * (k_dot @ (weight * columns)) - 2 * (half @ columns)
        M[:, 0] += half @ columns[:, 0] - np.sum(half, axis=0)
        lengths = -2 * variance * np.sum(M[:, :1] * scaled**2 - scaled * M[:, 1:], axis=0)
        # The sum of A times K itself is known, and the variance's part is what the others leave of it.
        by_variance = self.targets @ alpha - len(alpha) - by_slope - by_noise - CONSTANT * products[1]
        return np.concatenate([lengths, np.array([by_variance, by_slope, by_noise]) / 2])


def squared_distances(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    """Return the squared distances of all pairs of points."""
    square = np.sum(points**2, axis=1)
    q = (-2 * points) @ points.T
    q += square
    q += square[:, None]
    np.maximum(q, 0, out=q)
    np.fill_diagonal(q, 0)  # exactly: the root of a rounding error is not small
    return q


def correlation(shape: str, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the correlation at squared distances, and its derivative by them."""
    if shape == "eq":
        k = np.exp(-q / 2)
        return k, -k / 2
    r = np.sqrt(q)
    if shape == "matern12":
        k = np.exp(-r)
        return k, np.where(q > 1e-12, -k / (2 * np.maximum(r, 1e-6)), 0)  # at a point itself nothing moves
    if shape == "matern32":
        r = math.sqrt(3) * r
        e = np.exp(-r)
        return (1 + r) * e, -1.5 * e
    r *= -math.sqrt(5)
    e = np.exp(r)
    np.subtract(1, r, out=r)
    r *= e
    e *= q
    e *= 5 / 3
    e += r
    r *= -5 / 6
    return e, r
