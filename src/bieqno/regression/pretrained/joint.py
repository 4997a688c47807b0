"""The joint distribution at many points: given marginals, correlations by the chain rule over blocks of points.

The noise of new values is independent, the rest of the variance is the function's. Its correlations are those of the
`ARDProcess` given the observations: for that process alone the joint distribution is exact. Up to `ONE_BLOCK` points are one
dense block. More are cut into blocks of neighbours; each follows, by the chain rule, from the nearest earlier block. A block and
its parent are correlated as if they were alone, and every point has the mean and the variance that `predict` states.
With ``u = L^-1 z`` for the standardised values z of a block, ``u = W u_parent + (I - W W^T)^(1/2) e`` with independent e. Time
and memory are linear in the number of points.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from scipy.linalg import cholesky, solve_triangular

from bieqno.cores import one_blas_thread
from bieqno.gaussian import AbstractGaussian
from bieqno.regression.pretrained.ard import ARDProcess

ONE_BLOCK, BLOCK = 1024, 192  # most points of a dense joint distribution, and of a block where there are more
_FEW = 64  # independent points of a block
_MOST_SHARED = 1 - 1e-6  # of the variance with other points: keeps decompositions finite


class Block(eqx.Module):
    """Some points: their correlation's Cholesky factor, and their link to the whitened values of an earlier block."""

    rows: Int[np.ndarray, "k"]
    factor: Float[np.ndarray, "k k"]
    parent: int = eqx.field(static=True)  # the first block has itself and a link of zero
    link: Float[np.ndarray, "k p"]

    @cached_property
    def own(self) -> Float[np.ndarray, "k k"]:
        """The Cholesky factor of what the parent does not tell."""
        left = np.eye(len(self.rows)) - self.link @ self.link.T
        return cholesky(left, lower=True, check_finite=False) if self.link.size else left


class ChainGaussian(AbstractGaussian):
    """A joint Gaussian over n values by its means, deviations, and blocks that follow from each other; NumPy's arrays.

    Example:
        >>> pair = ChainGaussian.dense(np.zeros(2), np.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> other = pair.condition(np.array([0]), np.array([3.0]))
        >>> other.mean.round(3).tolist(), other.variance.round(3).tolist()
        ([1.5], [1.5])
    """

    mean: Float[np.ndarray, "n"]
    deviation: Float[np.ndarray, "n"]
    blocks: tuple[Block, ...]

    @classmethod
    def dense(cls, mean: Float[np.ndarray, "n"], covariance: Float[np.ndarray, "n n"]) -> "ChainGaussian":
        """Return the Gaussian of a dense covariance: one block."""
        deviation = np.sqrt(np.diag(covariance))
        correlation = covariance / np.outer(deviation, deviation)
        return cls(mean, deviation, (Block(np.arange(len(mean)), _factor(correlation), 0, np.zeros((len(mean), 0))),))

    @property
    def size(self) -> int:
        """Number of points n."""
        return len(self.mean)

    @property
    def variance(self) -> Float[np.ndarray, "n"]:
        """Variance of each point."""
        return self.deviation**2

    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Return the dense covariance matrix, O(n^2) memory."""
        return self._covariance(np.arange(self.size))

    def covariance_of(self, correlation: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
        """Return the covariance, given the correlation that the blocks make."""
        return correlation * np.outer(self.deviation, self.deviation)

    @one_blas_thread.wrap
    def log_prob(self, value: Any) -> float:
        """Return the logarithm of the joint density at `value`."""
        value = np.asarray(value, np.float64)
        if value.shape != self.mean.shape:
            raise ValueError(f"expected {self.size} values, got shape {value.shape}")
        z = (value - self.mean) / self.deviation
        u: list[np.ndarray] = []
        total = -np.sum(np.log(self.deviation)) - self.size / 2 * np.log(2 * np.pi)
        for block in self.blocks:
            white = solve_triangular(block.factor, z[block.rows], lower=True, check_finite=False)
            parent = u[block.parent] if block.link.shape[1] else np.zeros(0)
            e = solve_triangular(block.own, white - block.link @ parent, lower=True, check_finite=False)
            total -= e @ e / 2 + np.sum(np.log(np.diag(block.own))) + np.sum(np.log(np.diag(block.factor)))
            u.append(white)
        return float(total)

    @one_blas_thread.wrap
    def sample(self, count: int, *, key: PRNGKeyArray) -> Float[np.ndarray, "count n"]:
        """Draw joint samples, one per row."""
        # NumPy's numbers: JAX would compile anew for every number of points.
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        u: list[np.ndarray] = []
        z = np.empty((count, self.size))
        for block in self.blocks:
            white = random.standard_normal((count, len(block.rows)))
            if block.link.size:
                white = white @ block.own.T + u[block.parent] @ block.link.T
            z[:, block.rows] = white @ block.factor.T
            u.append(white)
        return self.mean + self.deviation * z

    def marginal(self, indices: Any) -> "ChainGaussian":
        """Return the joint distribution of some of the points, dense, in the order of `indices`."""
        indices = self._checked(indices)
        return ChainGaussian.dense(self.mean[indices], self._covariance(indices))

    def condition(self, indices: Any, values: Any) -> "ChainGaussian":
        """Return the distribution of the other points, dense, in their order, given the values of those of `indices`."""
        indices, values = self._checked(indices), np.asarray(values, np.float64)
        if values.shape != indices.shape:
            raise ValueError(f"each of {indices.size} indices has one value, got shape {values.shape}")
        rest, C = np.delete(np.arange(self.size), indices), self.covariance()
        L = cholesky(C[np.ix_(indices, indices)], lower=True)
        V = solve_triangular(L, C[np.ix_(indices, rest)], lower=True)
        mean = self.mean[rest] + V.T @ solve_triangular(L, values - self.mean[indices], lower=True)
        return ChainGaussian.dense(mean, C[np.ix_(rest, rest)] - V.T @ V)

    def _checked(self, indices: Any) -> Int[np.ndarray, "k"]:
        """Return numbers of points, counted from the front; those that count from the back are negative."""
        found = np.asarray(indices)
        if found.size and not np.issubdtype(found.dtype, np.integer):
            raise TypeError(f"indices are whole numbers, got {found.dtype}")
        if np.any((found >= self.size) | (found < -self.size)):
            raise ValueError(f"indices must lie within {self.size} points, got {indices}")
        return found.astype(int) % self.size

    def _covariance(self, indices: Int[np.ndarray, "k"]) -> Float[np.ndarray, "k k"]:
        """Return the covariance of some points, block by block."""
        block_of, place = np.empty((2, self.size), int)
        for i, block in enumerate(self.blocks):
            block_of[block.rows], place[block.rows] = i, np.arange(len(block.rows))
        C = np.empty((len(indices), len(indices)))
        used = np.unique(block_of[indices]).tolist()
        where = {i: np.flatnonzero(block_of[indices] == i) for i in used}
        factor = {i: self.blocks[i].factor[place[indices[where[i]]]] for i in used}
        for i in used:
            for j in (j for j in used if j <= i):
                part = factor[i] @ self._between(i, j) @ factor[j].T
                C[np.ix_(where[i], where[j])] = part
                C[np.ix_(where[j], where[i])] = part.T
        deviation = self.deviation[indices]
        return C * np.outer(deviation, deviation)

    def _between(self, i: int, j: int) -> Float[np.ndarray, "k p"]:
        """Return the covariance of the whitened values of two blocks: links along the path through the tree of blocks."""
        left, right = (np.eye(len(self.blocks[b].rows)) for b in (i, j))
        while i != j:
            if i > j:
                left, i = left @ self.blocks[i].link, self.blocks[i].parent
            else:
                right, j = right @ self.blocks[j].link, self.blocks[j].parent
        return left @ right.T


def chains(
    process: ARDProcess, points: Float[np.ndarray, "n d"], shared: Sequence[Float[np.ndarray, "n"]]
) -> list[tuple[Block, ...]]:
    """Return the blocks of chains that are correlated as a process is, given its rows.

    Each of the chains has such a share of the variance at every point that it has in common with other points.
    """
    roots = [np.sqrt(np.clip(one, 0, _MOST_SHARED)) for one in shared]

    def factors(rows: Int[np.ndarray, "k"]) -> list[Float[np.ndarray, "k k"]]:
        C = process.posterior_covariance(points[rows], len(points) <= ONE_BLOCK)
        least = 1e-9 * np.exp(process.log_variances[0])  # where everything is known, points are independent
        deviation = np.sqrt(np.maximum(np.diag(C), 0) + least)
        C = C / np.outer(deviation, deviation)
        return [_factor(_correlation(C, root[rows])) for root in roots]

    found: list[list[Block]] = [[] for _ in shared]
    parts = _cut(process.metric(points))
    centres = np.array([process.metric(points[rows]).mean(axis=0) for rows in parts])
    for i, rows in enumerate(parts):
        if not i:
            for blocks, own in zip(found, factors(rows), strict=True):
                blocks.append(Block(rows, own, 0, np.zeros((len(rows), 0))))
            continue
        parent = int(np.argmin(np.sum((centres[:i] - centres[i]) ** 2, axis=1)))
        before = len(parts[parent])
        # Of parent and block together: the lower rows are the link and what it leaves, up to the block's own whitening.
        for blocks, L in zip(found, factors(np.concatenate([parts[parent], rows])), strict=True):
            factor = _factor(L[before:] @ L[before:].T)
            link = solve_triangular(factor, L[before:, :before], lower=True, check_finite=False)
            blocks.append(Block(rows, factor, parent, link))
    return [tuple(blocks) for blocks in found]


def unlinked(count: int) -> tuple[Block, ...]:
    """Return the blocks of so many independent values."""
    rows = [np.arange(i, min(i + _FEW, count)) for i in range(0, count, _FEW)]
    return tuple(
        Block(own, np.eye(len(own)), 0, np.zeros((len(own), len(rows[0]) * bool(i)))) for i, own in enumerate(rows)
    )


def chain(
    process: ARDProcess,
    points: Float[np.ndarray, "n d"],
    mean: Float[np.ndarray, "n"],
    std: Float[np.ndarray, "n"],
    noise: Float[np.ndarray, "n"],
) -> ChainGaussian:
    """Join marginals at points, in which so much of the variance is `noise`, by the correlations of a process."""
    return ChainGaussian(mean, std, chains(process, points, [1 - noise / std**2])[0])


def _correlation(C: Float[np.ndarray, "k k"], root: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k k"]:
    """Return the correlation of values of which such a part, squared, is correlated."""
    C = C * np.outer(root, root)
    C[np.diag_indices_from(C)] = 1
    return C


def _factor(correlation: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """Return the Cholesky factor of a correlation, whose diagonal stays one."""
    least = 1e-8
    while True:
        try:
            matrix = (1 - least) * correlation
            matrix[np.diag_indices_from(matrix)] = 1
            return cholesky(matrix, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            least *= 10


def _cut(points: Float[np.ndarray, "n d"]) -> list[Int[np.ndarray, "k"]]:
    """Cut points into blocks of neighbours: halves along the widest input, until they are small."""
    whole = np.arange(len(points))
    if len(points) <= ONE_BLOCK:
        return [whole]
    parts, done = [whole], []
    while parts:
        rows = parts.pop()
        if len(rows) <= BLOCK:
            done.append(rows)
            continue
        widest = int(np.argmax(np.ptp(points[rows], axis=0)))
        order = rows[np.argsort(points[rows, widest], kind="stable")]
        parts += [order[len(order) // 2 :], order[: len(order) // 2]]
    return done
