"""A Gaussian process of the whole table, with a length scale for each input (ARD), found by marginal likelihood.

The covariance of two noisy values is ``s k(|(x - x') / l|) + b x . x' + c + noise``; inputs and targets have mean zero and
deviation one. Shape k, length scales l, variances s and b and the noise maximise the marginal likelihood of at most `FIT_ROWS`
rows (`likelihood`), on the host in double precision: nothing compiles. Up to `EXACT_ROWS` rows predictions are exact: a smooth
function of many inputs is told by far more rows than the nearest. Of more rows, a prediction is made from the nearest in the
metric of the length scales.
"""

from functools import cached_property

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dposv, dtrtri
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from bieqno.regression.pretrained.likelihood import CONSTANT, SHAPES, Likelihood, correlation
from bieqno.regression.pretrained.mixture import Moments

FIT_ROWS, SCREEN_ROWS = 1000, 128  # most rows that decide on the hyperparameters, and on shapes and starts
_HALF_ROWS = 280  # that are climbed by first where there are up to twice as many
_MANY, _SCREEN_ROWS_OF_MANY = 2048, 400  # of so many rows more are worth the time: few tell shapes badly apart
EXACT_ROWS = 10_000  # whose factor has 0.8 GB and is made in half a minute
NEAREST, ANCHORS = 224, 64  # rows that a prediction from more is made of: the nearest, and some all over the table
_FOLDS = 4
_CHUNK, _BAND = 64, 1024  # predictions that are made at once from the nearest rows, and from all
_NEAR = 6.0  # a shape whose log-likelihood of the few rows is as near to the best is tried with all
# Inputs, and places for each, from which on the last climb has wide priors, so that inputs that do not matter drop out.
_SEVERAL, _PLACES = 4, 5
_STARTS = ((1.0, 0.1), (0.25, 0.01), (3.0, 0.5))  # common length over the prior's, and variance of the noise


class ARDProcess(eqx.Module):
    """A Gaussian process with the rows that it is conditioned on, in scaled units."""

    inputs: Float[np.ndarray, "n d"]
    targets: Float[np.ndarray, "n"]
    log_lengths: Float[np.ndarray, "d"]
    log_variances: Float[np.ndarray, "3"]  # of the function, of its slopes, of the noise
    shape: str = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.inputs.ndim != 2 or self.targets.shape != self.inputs.shape[:1] or not len(self.targets):
            raise ValueError(f"inputs of shape {self.inputs.shape} do not match targets of {self.targets.shape}")
        if self.log_lengths.shape != self.inputs.shape[1:] or self.log_variances.shape != (3,):
            raise ValueError("there is a length for each input, and three variances")
        if self.shape not in SHAPES:
            raise ValueError(f"expected a shape of {', '.join(SHAPES)}, got {self.shape!r}")

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return float(np.exp(self.log_variances[2]))

    @property
    def exact(self) -> bool:
        """Whether predictions use all rows."""
        return len(self.targets) <= EXACT_ROWS

    @cached_property
    def tree(self) -> KDTree:
        """The search tree of the rows in the metric of the length scales."""
        return KDTree(self.metric(self.inputs))

    @cached_property
    def anchors(self) -> Int[np.ndarray, "a"]:
        """Rows that take part in every prediction from the nearest."""
        return np.random.default_rng(0).permutation(len(self.targets))[:ANCHORS]

    @cached_property
    def factor(self) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n"]]:
        """The Cholesky factor of the covariance of all rows, and the covariance's inverse times their targets."""
        K = np.empty((len(self.targets), len(self.targets)))
        for band in _bands(len(K)):
            K[band] = self.covariance(self.inputs[band], self.inputs)
        K[np.diag_indices_from(K)] += self.noise
        L = cholesky(K.T, lower=True, overwrite_a=True, check_finite=False)  # transposed it is decomposed in its place
        return L, cho_solve((L, True), self.targets, check_finite=False)

    def metric(self, points: Float[np.ndarray, "... d"]) -> Float[np.ndarray, "... d"]:
        """Return points in units of the length scales."""
        return points * np.exp(-self.log_lengths)

    def covariance(self, a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Return the covariance of the function between points, without the noise."""
        variance, slope, _ = np.exp(self.log_variances)
        K = variance * correlation(self.shape, cdist(self.metric(a), self.metric(b), "sqeuclidean"))[0]
        return K + slope * (a @ b.T) + CONSTANT

    def variance(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n"]:
        """Return the variance of the function at points before anything is observed."""
        return np.exp(self.log_variances[0]) + np.exp(self.log_variances[1]) * np.sum(points**2, axis=1) + CONSTANT

    def predict(self, points: Float[np.ndarray, "n d"]) -> Moments:
        """Predict noisy values.

        Example:
            >>> x = np.linspace(-1, 1, 9)[:, None]
            >>> found = fit_ard(x, np.sin(3 * x[:, 0])).predict(np.array([[0.1]]))
            >>> float(found.mean[0].round(2)), bool(found.variance[0] < 1e-2)
            (0.3, True)
        """
        if not self.exact:
            near = self.tree.query(self.metric(points), NEAREST)[1]
            return self._from_nearest(points, near)
        L, solved = self.factor
        mean, known = np.empty((2, len(points)))
        for band in _bands(len(points)):
            k = self.covariance(self.inputs, points[band])
            mean[band] = solved @ k
            known[band] = np.sum(solve_triangular(L, k, lower=True, check_finite=False) ** 2, axis=0)
        return Moments(mean, np.maximum(self.variance(points) - known, 0) + self.noise)

    def posterior_covariance(self, points: Float[np.ndarray, "n d"], all_rows: bool) -> Float[np.ndarray, "n n"]:
        """Return the covariance of the function at points given all rows, or those that are nearest to the points."""
        if all_rows and self.exact:
            x, L = self.inputs, self.factor[0]
        else:
            each = -(-NEAREST // max(len(points), 1)) + 2
            near = self.tree.query(self.metric(points), np.arange(1, min(each, len(self.targets)) + 1))[1]
            x = self.inputs[np.unique(np.append(near, self.anchors))]
            L = cholesky(self.covariance(x, x) + self.noise * np.eye(len(x)), lower=True, check_finite=False)
        known = solve_triangular(L, self.covariance(x, points), lower=True, check_finite=False)
        return self.covariance(points, points) - known.T @ known

    def leave_out(self, rows: Int[np.ndarray, "n"], groups: Int[np.ndarray, "m"]) -> Moments:
        """Predict rows from all others but those of their own group, as duplicates are.

        Example:
            >>> x = np.linspace(-1, 1, 9)[:, None]
            >>> process = fit_ard(x, np.sin(3 * x[:, 0]))
            >>> rest = eqx.tree_at(lambda p: (p.inputs, p.targets), process, (x[1:], process.targets[1:]))
            >>> bool(np.isclose(process.leave_out(np.arange(1), np.arange(9)).mean, rest.predict(x[:1]).mean)[0])
            True
        """
        if not self.exact:
            near = self.tree.query(self.metric(self.inputs[rows]), NEAREST + 1)[1]
            return self._from_nearest(self.inputs[rows], near, (groups, groups[rows]))
        L, solved = self.factor
        white = dtrtri(L, lower=1)[0]  # whose columns have the products that the precision is made of
        variance = 1 / np.einsum("ij,ij->j", white, white)
        mean = self.targets - solved * variance
        # A group is left out together: the same formula with the block of the precision that belongs to it.
        order = np.argsort(groups, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if len(own) > 1:
                block = np.linalg.inv(white[:, own].T @ white[:, own])
                mean[own], variance[own] = self.targets[own] - block @ solved[own], np.diag(block)
        return Moments(mean[rows], variance[rows])

    def cross_fit(self, groups: Int[np.ndarray, "n"], *, noise: float | None, tied: bool) -> Moments:
        """Predict every row by hyperparameters, too, that were found without its fold; a group is in one fold."""
        own, number = np.unique(groups, return_inverse=True)
        folds = (np.random.default_rng(0).permutation(len(own)) % _FOLDS)[number]
        mean, variance = np.empty((2, len(groups)))
        for held in (folds == fold for fold in range(_FOLDS)):
            inputs, targets = self.inputs[~held], self.targets[~held]
            likelihood = Likelihood(inputs, targets, noise)
            theta = likelihood.climb(self.shape, likelihood.start(*_STARTS[0]), 12, tied).theta
            fold = ARDProcess(inputs, targets, theta[:-3], theta[-3:], self.shape)
            mean[held], variance[held] = fold.predict(self.inputs[held])
        return Moments(mean, variance)

    def _from_nearest(
        self,
        points: Float[np.ndarray, "n d"],
        near: Int[np.ndarray, "n k"],
        without: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Moments:
        """Predict from the nearest rows and the anchors; `without` are the groups of rows and that of each point."""
        parts = [slice(i, i + _CHUNK) for i in range(0, len(points), _CHUNK)]
        found = [self._chunk(points[part], near[part], without and (without[0], without[1][part])) for part in parts]
        return Moments(*(np.concatenate(values) for values in zip(*found, strict=True)))

    def _chunk(
        self, points: np.ndarray, near: np.ndarray, without: tuple[np.ndarray, np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        anchors = np.broadcast_to(self.anchors, (len(points), len(self.anchors)))
        twice = np.any(anchors[:, :, None] == near[:, None], axis=2)
        rows = np.concatenate([anchors, near], axis=1)
        absent = np.concatenate([twice, np.zeros_like(near, bool)], axis=1)
        if without is not None:
            absent |= without[0][rows] == without[1][:, None]
        x = self.inputs[rows]
        variance, slope, noise = np.exp(self.log_variances)
        scaled = self.metric(x)
        square = np.sum(scaled**2, axis=2)
        q = np.maximum(square[:, :, None] + square[:, None] - 2 * scaled @ np.swapaxes(scaled, 1, 2), 0)
        K = variance * correlation(self.shape, q)[0] + slope * x @ np.swapaxes(x, 1, 2) + CONSTANT
        q = np.sum((scaled - self.metric(points)[:, None]) ** 2, axis=2)
        k = variance * correlation(self.shape, q)[0] + slope * np.sum(x * points[:, None], axis=2) + CONSTANT
        # What is absent is independent of everything.
        K = np.where(absent[:, :, None] | absent[:, None], 0, K) + noise * np.eye(rows.shape[1])
        k, y = np.where(absent, 0, k), np.where(absent, 0, self.targets[rows])
        solved = np.stack([dposv(*pair, lower=1)[1] for pair in zip(K, np.stack([k, y], axis=2), strict=True)])
        known = np.sum(k[..., None] * solved, axis=1)
        return known[:, 1], np.maximum(self.variance(points) - known[:, 0], 0) + noise


def _bands(count: int) -> list[slice]:
    return [slice(i, i + _BAND) for i in range(0, count, _BAND)]


def fit_ard(
    inputs: Float[np.ndarray, "n d"],
    targets: Float[np.ndarray, "n"],
    *,
    noise: float | None = None,
    like: ARDProcess | None = None,
    tied: bool = False,
) -> ARDProcess:
    """Fit a process to scaled data, given the known deviation of the noise or None.

    With `tied`, all inputs have one length scale. `like` has the shape and the ratios of the length scales to keep: only their
    common factor and the variances are then fitted.
    """
    # A few length scales are known from a few rows; of many rows more are worth the time.
    most = min(FIT_ROWS, max(60 + 100 * inputs.shape[1], len(targets) // 4))
    chosen = np.random.default_rng(0).permutation(len(targets))[:most]
    screen = SCREEN_ROWS if len(targets) <= _MANY else _SCREEN_ROWS_OF_MANY
    # Of some hundred rows half of them bring the climb near its end, in a fifth of the time.
    halved = _HALF_ROWS < len(chosen) <= 2 * _HALF_ROWS
    few, half, all_of_them = (
        Likelihood(inputs[rows], targets[rows], noise)
        for rows in map(np.sort, (chosen[:screen], chosen[:_HALF_ROWS] if halved else chosen, chosen))
    )
    if like is not None:
        start = np.concatenate([like.log_lengths, [np.log(0.3), np.log(1e-3), np.log(0.7)]])
        first = few.climb(like.shape, start, 15, True).of_more(len(half.targets) / len(few.targets))
        theta = half.climb(like.shape, first.theta, 6, True, first.axes).theta
        return ARDProcess(inputs, targets, theta[:-3], theta[-3:], like.shape)
    # Each climb takes over from the one before how far a step goes along which axis, and so needs few steps of its own.
    first = max((few.climb(SHAPES[0], few.start(*start), 8, tied) for start in _STARTS), key=lambda end: end.value)
    best = few.climb(SHAPES[0], first.theta, 15, tied, first.axes)
    found = {SHAPES[0]: best} | few.climb_others(SHAPES[0], best, 8, tied, best.axes)
    rows = len(few.targets)
    if len(chosen) > screen:
        ranked = sorted(found, key=lambda shape: -found[shape].value)
        near = [shape for shape in ranked[:2] if found[shape].value > found[ranked[0]].value - _NEAR]
        begun = {shape: found[shape].of_more(len(half.targets) / rows) for shape in near}
        found = {shape: half.climb(shape, end.theta, 8, tied, end.axes) for shape, end in begun.items()}
        rows = len(half.targets)
    shape = max(found, key=lambda shape: found[shape].value)
    end = found[shape].of_more(len(chosen) / rows)
    enough = len(np.unique(inputs, axis=0)) > _PLACES * inputs.shape[1]
    several = inputs.shape[1] >= _SEVERAL and enough and not tied
    if not (several and halved):
        end = all_of_them.climb(shape, end.theta, 8 if halved else 15, tied, end.axes)
    theta = (all_of_them.relaxed().climb(shape, end.theta, 8, tied, end.axes) if several else end).theta
    return ARDProcess(inputs, targets, theta[:-3], theta[-3:], shape)
