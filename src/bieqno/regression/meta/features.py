"""What the posterior operator is told about a point of a chain and the values before it: numbers of moderate size."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bieqno.regression.meta.lines import CANDIDATES, Lines
from bieqno.regression.meta.mixture import Mixture

NEIGHBOURS = 16
NEIGHBOUR_FEATURES = 6
_MOST = 4.0
"""Positions, values and slopes beyond this multiple of their unit are not told apart."""


def point_features(processes: int) -> int:
    """Number of features of a point, given the number of Gaussian processes."""
    return 3 * processes + 2 * CANDIDATES + 15


def of_point(base: Mixture, lines: Lines, count: Int[Array, ""]) -> Float[Array, "p"]:
    """Features of a point: what the processes and the straight pieces say there."""
    spread = base.variance
    gaps = jnp.minimum(lines.gaps, _MOST)
    return jnp.concatenate(
        [
            jnp.arcsinh((base.means - base.mean) / jnp.sqrt(spread)),
            jnp.log(base.variances / spread) / 2,
            jnp.maximum(base.log_weight, -12) / 4,
            jnp.where(lines.there, jnp.clip(lines.values, -_MOST, _MOST), 0),
            jnp.where(lines.there, jnp.arcsinh((lines.values - base.mean) / jnp.sqrt(spread)), 0),
            jnp.stack([base.mean, jnp.log(spread) / 2, jnp.log1p(count) / 2]),
            gaps,
            jnp.log(gaps + 1e-3) / 4,
            lines.there[:3].astype(gaps.dtype),  # on the left, on the right, and with a jump
            jnp.stack([jnp.clip(lines.slope, -8, 8) / 4, _width(lines.slope_width), lines.share]),
            jnp.stack([jnp.clip(lines.jump, -_MOST, _MOST), _width(lines.jump_width)]),
        ]
    )


def of_neighbours(
    point: Float[Array, ""],
    base: Mixture,
    lines: Lines,
    x: Float[Array, "n"],
    y: Float[Array, "n"],
    mask: Bool[Array, "n"],
) -> tuple[Float[Array, "k r"], Bool[Array, "k"]]:
    """Features of the nearest known values, and which of them are there."""
    distance = jnp.where(mask, jnp.abs(x - point), jnp.inf)
    negative, rows = jax.lax.top_k(-distance, min(NEIGHBOURS, len(x)))
    near = jnp.isfinite(negative)
    offset, value = jnp.where(near, x[rows] - point, 0), jnp.where(near, y[rows], 0)
    columns = [
        offset,
        jnp.sign(offset),
        jnp.log(jnp.abs(offset) + 1e-3) / 4,
        value,
        jnp.arcsinh((value - base.mean) / jnp.sqrt(base.variance)),
        jnp.clip(value - lines.slope * offset, -_MOST, _MOST),
    ]
    return jnp.stack(columns, axis=1), near


def _width(width: Float[Array, ""]) -> Float[Array, ""]:
    """Of an interval, from a millionth to more than is worth telling apart."""
    return jnp.log(jnp.clip(width, 1e-6, 10.0)) / 4
