"""The marginal likelihood of a Gaussian process with a length scale for each input, and its climb by L-BFGS.

Gradients are in closed form: that by all length scales costs one product of a matrix with the inputs. Wide priors keep apart
what few rows of many inputs cannot: each input that matters has its price, as in Schwarz's criterion, and so have rough shapes,
for both explain any noise; the noise has a prior with heavy tails.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize

from bieqno.regression.data import MIN_NOISE

SHAPES = ("matern52", "matern32", "eq", "matern12")
CONSTANT = 1.0  # variance of the constant mean
_TYPICAL_NOISE, _NOISE_WIDTH = 0.2, 1.5  # variance, and deviation of its logarithm: a prior with heavy tails
_MATTERS = 10.0  # a length scale from which on an input hardly matters
_COST = {"matern32": 3.0, "matern12": 8.0}  # of rough shapes, which among many inputs explain noise
_LEAST_LOG_NOISE = 2 * math.log(MIN_NOISE)


class Likelihood:
    """The marginal likelihood of some rows, times the priors, as a function of the logarithms of the hyperparameters."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, noise: float | None) -> None:
        d = inputs.shape[1]
        self.inputs, self.targets, self.linear = inputs, targets, inputs @ inputs.T
        self.known = None if noise is None else max(2 * math.log(max(noise, MIN_NOISE)), _LEAST_LOG_NOISE)
        # Where the search starts, and wide normal priors round it.
        lengths = (math.log(1.5) + math.log(d) / 2, 2.5)
        self.prior = np.array([*[lengths] * d, (0, 1.5), (math.log(0.05), 2), (math.log(_TYPICAL_NOISE), 9)])
        noise_bounds = (_LEAST_LOG_NOISE, math.log(2)) if self.known is None else (self.known, self.known)
        self.bounds = [*[(math.log(3e-3), math.log(1e3))] * d, (-7, 5), (-12, 3), noise_bounds]

    def start(self, length: float, noise: float) -> Float[np.ndarray, "p"]:
        """Return a start, given the common length over that of the prior, and the variance of the noise."""
        theta = self.prior[:, 0].copy()
        theta[:-3] += math.log(length)
        theta[-1] = math.log(noise) if self.known is None else self.known
        return theta

    def climb(self, shape: str, start: np.ndarray, steps: int, tied: bool = False) -> tuple[float, np.ndarray]:
        """Return the highest value that is found from a start, and where it is; `tied` moves all length scales alike."""
        low, high = np.array(self.bounds).T
        start = np.clip(start, low, high)
        d, moves = len(start) - 3, self.moves(tied)

        def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(shape, np.clip(start + free @ moves, low, high))
            return -value, -moves @ gradient

        limits = np.stack([low - start, high - start], axis=1)
        if tied:
            limits = np.concatenate([[[-5.0, 5.0]], limits[d:]])
        options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-5}
        end = minimize(loss, np.zeros(len(moves)), jac=True, method="L-BFGS-B", bounds=limits, options=options)
        return -float(end.fun), np.clip(start + end.x @ moves, low, high)

    def moves(self, tied: bool) -> Float[np.ndarray, "r p"]:
        """Return rows that move the hyperparameters: each by itself, or all length scales together."""
        size = len(self.bounds)
        moves = np.eye(size)
        if not tied:
            return moves
        return np.concatenate([np.ones((1, size)) * (np.arange(size) < size - 3), moves[size - 3 :]])

    def __call__(self, shape: str, theta: Float[np.ndarray, "p"]) -> tuple[float, Float[np.ndarray, "p"]]:
        """Return the value and its gradient."""
        x, y = self.inputs, self.targets
        scaled = x * np.exp(-theta[:-3])
        variance, slope, noise = np.exp(theta[-3:])
        k, k_dot = correlation(shape, squared_distances(scaled))
        K = variance * k
        K += slope * self.linear
        K += CONSTANT
        K[np.diag_indices_from(K)] += noise
        L, failed = dpotrf(K.T, lower=1, overwrite_a=1)  # transposed it is decomposed in its place
        if failed:
            return -1e10, np.zeros(len(theta))
        alpha = cho_solve((L, True), y, check_finite=False)
        z = (theta - self.prior[:, 0]) / self.prior[:, 1]
        many = min((x.shape[1] - 1) / 3, 1.0)
        cost = (0.25 + 0.75 * many) * _COST.get(shape, 0)
        value = -cost - 0.5 * y @ alpha - np.sum(np.log(np.diag(L))) - 0.5 * z @ z
        gradient = self._slopes(theta, scaled, alpha, dpotri(L, lower=1, overwrite_c=1)[0].T, k_dot)
        gradient -= z / self.prior[:, 1]
        # Each input that matters costs two or three, as in Schwarz's criterion: many inputs explain any noise.
        relevance = (_MATTERS * np.exp(-theta[:-3])) ** 2
        t = (theta[-1] - math.log(_TYPICAL_NOISE)) / _NOISE_WIDTH
        value -= many * np.sum(np.log1p(relevance)) + math.log1p(t**2)
        gradient[:-3] += many * 2 * relevance / (1 + relevance)
        gradient[-1] -= 2 * t / (1 + t**2) / _NOISE_WIDTH
        return value, gradient

    def _slopes(
        self, theta: np.ndarray, scaled: np.ndarray, alpha: np.ndarray, half: np.ndarray, k_dot: np.ndarray
    ) -> Float[np.ndarray, "p"]:
        """Return the gradient of the likelihood, given the upper half of the inverse covariance, the rest of it zero.

        With ``A = alpha alpha^T - K^-1`` the slope by a hyperparameter is half the sum of A times K's derivative. Of matrices
        of all pairs of rows only one is made: the others are multiplied with a few columns instead.
        """
        variance, slope, noise = np.exp(theta[-3:])
        ones = np.ones((len(alpha), 1))
        # Of -2 dq_k, summed over pairs: |x_i - x_j|^2 by its three terms, of which pairs of a row with itself have nothing.
        columns = np.concatenate([ones, scaled], axis=1)
        own = half * k_dot
        M = alpha[:, None] * (k_dot @ (alpha[:, None] * columns)) - own @ columns - own.T @ columns
        lengths = -2 * variance * np.sum(M[:, :1] * scaled**2 - scaled * M[:, 1:], axis=0)
        diagonal = np.diag(half)
        columns = np.concatenate([ones, self.inputs], axis=1)
        products = (alpha @ columns) ** 2 - np.sum(columns * (half @ columns + half.T @ columns), axis=0)
        products += diagonal @ columns**2
        by_slope = slope * np.sum(products[1:])
        by_noise = noise * (alpha @ alpha - np.sum(diagonal))
        # The sum of A times K itself is known, and the variance's part is what the others leave of it.
        by_variance = self.targets @ alpha - len(alpha) - by_slope - by_noise - CONSTANT * products[0]
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
    r = math.sqrt(5) * r
    e = np.exp(-r)
    r = (1 + r) * e
    e *= q
    return (5 / 3) * e + r, (-5 / 6) * r
