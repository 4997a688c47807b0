"""Piecewise straight functions: what a slope that recurs, and a jump that recurs, say about a point.

A Gaussian process is smooth or rough alike everywhere, and a straight piece beside a jump is neither. Between neighbouring
observations the slope is the same again and again where they lie on pieces of a common slope; what is left of the others is
the height of a jump. Both are told without knowing how long the pieces are. Noise hides them, which the widths tell.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

CANDIDATES = 4
_SMALL = 0.02
"""Least jump, in the unit of the values."""


class Lines(NamedTuple):
    """What straight pieces say at one point."""

    values: Float[Array, "4"]
    """Drawn on from the observation on the left and on the right, without and with a jump in between."""
    there: Bool[Array, "4"]
    slope: Float[Array, ""]
    slope_width: Float[Array, ""]
    """Relative difference of the three slopes that agree best; infinite if there are no three."""
    share: Float[Array, ""]
    """Of neighbouring pairs that have that slope."""
    jump: Float[Array, ""]
    jump_width: Float[Array, ""]
    """Difference of the two jumps that agree best; infinite if there are no two."""
    gaps: Float[Array, "2"]
    """To the observations on the left and on the right; infinite if there is none."""


def draw_lines(point: Float[Array, ""], x: Float[Array, "n"], y: Float[Array, "n"], mask: Bool[Array, "n"]) -> Lines:
    """Find the slope and the jump that recur, and draw on from the neighbours of a point.

    Args:
        point: where.
        x: the observed inputs in ascending order.
        y: the observed values.
        mask: which of them are there.

    Example:
        >>> x = jnp.array([0.0, 0.2, 0.4, 0.6, 1.0, 1.2, 2.0])
        >>> lines = draw_lines(jnp.array(0.9), x, (x / 0.7) % 1, jnp.ones(7, bool))
        >>> [round(float(value), 2) for value in lines.values]  # 0.9 lies on the piece of the next observation
        [1.29, 0.29, 0.29, 1.29]
    """
    n = len(x)
    place = jnp.arange(n)
    left = jnp.max(jnp.where(mask & (x <= point), place, -1))
    right = jnp.min(jnp.where(mask & (x > point), place, n))
    reached = jax.lax.cummin(jnp.where(mask, place, n), reverse=True)
    following = jnp.append(reached[1:], n)
    pair = mask & (following < n)
    other = jnp.minimum(following, n - 1)
    run, rise = jnp.maximum(x[other] - x, 1e-6), y[other] - y

    slopes = jnp.sort(jnp.where(pair, rise / run, jnp.inf))
    slope, slope_width = _densest(slopes, 3)
    slope_width = slope_width / (0.1 + jnp.abs(slope))
    left_over = rise - slope * run
    alike = pair & (jnp.abs(left_over) < 0.01 * jnp.abs(slope) * run)
    jump, jump_width = _densest(jnp.sort(jnp.where(pair & (jnp.abs(left_over) > _SMALL), left_over, jnp.inf)), 2)

    before, after = jnp.maximum(left, 0), jnp.minimum(right, n - 1)
    from_left = y[before] + slope * (point - x[before])
    from_right = y[after] + slope * (point - x[after])
    beside = jnp.stack([left >= 0, right < n])
    steady, jumping = jnp.isfinite(slope_width), jnp.isfinite(jump_width)
    return Lines(
        jnp.stack([from_left, from_right, from_left + jump, from_right - jump]),
        jnp.concatenate([beside & steady, beside & steady & jumping]),
        slope,
        slope_width,
        jnp.sum(alike) / jnp.maximum(jnp.sum(pair), 1),
        jump,
        jump_width,
        jnp.where(beside, jnp.stack([point - x[before], x[after] - point]), jnp.inf),
    )


def without_pieces(lines: Lines) -> Lines:
    """The same as if no slope had recurred: only the gaps are told."""
    zero, infinite = jnp.zeros_like(lines.slope), jnp.full_like(lines.slope, jnp.inf)
    return Lines(
        jnp.zeros_like(lines.values), jnp.zeros_like(lines.there), zero, infinite, zero, zero, infinite, lines.gaps
    )


def _densest(ascending: Float[Array, "n"], count: int) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Middle and width of the shortest interval that holds `count` of the numbers; 0 and infinity if there is none."""
    last = ascending[count - 1 :]
    width = jnp.where(jnp.isfinite(last), last - ascending[: len(last)], jnp.inf)
    best = jnp.argmin(width)
    found = jnp.isfinite(width[best])
    return jnp.where(found, ascending[best + count // 2], 0), width[best]
