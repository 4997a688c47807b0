"""Data of a regressor: what is accepted, its units, and a padded form that data sets of similar size share.

Scaling is done in double precision: single precision would lose data that lie far from zero, as dates and pressures do.
"""

import warnings
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import validate_data

from bieqno.operators.fixed import INFINITE

LEAST_ROWS = 3  # two to learn from, one to hold out
MIN_NOISE = 1e-3  # least standard deviation of a prediction, in units of the targets' own: keeps the likelihood bounded

Table: TypeAlias = Any  # whatever scikit-learn turns into an array: lists, NumPy arrays, data frames

FAR = 1e3
"""Inputs further out than this many standard deviations are taken to lie there: no network extrapolates that far."""


ROUNDING = 1e-14  # of a value, below which differences are rounding: 50 times that of double precision
LARGEST = 1e150
"""Of inputs and targets: variances are in units of their squares."""


class Scaling(eqx.Module):
    """Shift and scale of inputs and targets, as NumPy numbers of double precision."""

    input_shift: np.ndarray
    input_scale: np.ndarray = eqx.field(metadata={INFINITE: True})  # infinite for inputs that take no part in distances
    target_shift: np.ndarray
    target_scale: np.ndarray

    def __check_init__(self) -> None:
        parts = self.input_shift, self.input_scale, self.target_shift, self.target_scale
        shift, scale, *of_targets = map(np.shape, parts)
        if shift != scale or len(shift) != 1 or of_targets != [(), ()]:
            raise ValueError(f"inputs are shifted by {shift} and scaled by {scale}, targets by {of_targets}")
        scales = np.append(self.input_scale, self.target_scale)
        if not (np.all(scales > 0) and np.isfinite(np.concatenate([*map(np.ravel, parts[::2]), scales[-1:]])).all()):
            raise ValueError(f"scales are positive, that of the targets and shifts are finite; got {scales}")
        if not 1 / LARGEST <= self.target_scale <= LARGEST:  # as in every fit; its square is a number
            raise ValueError(
                f"the scale of the targets is at most {LARGEST:g}, and its inverse; got {self.target_scale}"
            )

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray) -> "Scaling":
        """Scale to mean zero and standard deviation one; a constant keeps a scale of its own size.

        Example:
            >>> scaling = Scaling.of(np.array([[0.0, 7.0], [2.0, 7.0]]), np.array([5.0, 5.0]))
            >>> print(scaling.inputs(np.array([[3.0, 7.0]])), scaling.target_scale)
            [[2. 0.]] 0.005
        """
        for name, values in (("inputs", X), ("targets", y)):
            if np.abs(values).max() > LARGEST:
                size = f"{np.abs(values).max():.3g}"
                raise ValueError(f"{name} are at most {LARGEST:g}, so that their squares are finite, got {size}")
        scale = _spread(y, 1e-3)  # predictions of a constant target shall stay within a thousandth of it
        if scale < 1 / LARGEST:
            spread = f"{scale:.3g}"
            raise ValueError(f"targets have a standard deviation of at least {1 / LARGEST:g}, or none; got {spread}")
        return cls(X.mean(axis=0), _spread(X, 1.0), np.asarray(y.mean()), scale)

    def inputs(self, X: np.ndarray) -> Float[np.ndarray, "n d"]:
        """Return inputs in scaled units, in double precision."""
        return np.clip((X - self.input_shift) / self.input_scale, -FAR, FAR)

    def targets(self, y: np.ndarray) -> Float[np.ndarray, "n"]:
        """Return targets in scaled units, in double precision."""
        scaled = np.asarray((y - self.target_shift) / self.target_scale, np.float64)
        if np.abs(scaled).max(initial=0) > 1e6:
            raise ValueError(
                f"a target of {y[np.argmax(np.abs(scaled))]:.3g} is a million times as far from the mean "
                f"{self.target_shift:.3g} as those of the fit, whose standard deviation was {self.target_scale:.3g}"
            )
        return scaled

    def values(self, scaled: Array | np.ndarray) -> np.ndarray:
        """Return targets in the units of the data, in double precision."""
        return np.asarray(scaled, np.float64) * self.target_scale + self.target_shift


class Data(eqx.Module):
    """One data set in scaled units, padded to a size that many data sets share."""

    inputs: Float[Array, "m d"]
    targets: Float[Array, "m"]
    noise_variance: Float[Array, "m"]
    mask: Bool[Array, "m"]

    def __check_init__(self) -> None:
        rows = [part.shape for part in (self.targets, self.noise_variance, self.mask)]
        if self.inputs.ndim != 2 or any(shape != self.inputs.shape[:1] for shape in rows):
            raise ValueError(f"inputs of shape {self.inputs.shape} do not match targets, noise and mask of {rows}")

    @classmethod
    def scaled(cls, scaling: Scaling, X: np.ndarray, y: np.ndarray, noise_variance: np.ndarray) -> "Data":
        """Scale data, and pad them, by NumPy: JAX would compile anew for every number of rows."""
        padding = (0, round_up(len(y)) - len(y))
        return cls(
            floats(np.pad(scaling.inputs(X), (padding, (0, 0)))),
            floats(np.pad(scaling.targets(y), padding)),
            floats(np.pad(noise_variance / scaling.target_scale**2, padding)),
            jnp.asarray(np.arange(len(y) + padding[1]) < len(y)),
        )


def floats(values: float | np.ndarray) -> Array:
    """Return an array of the precision in which the networks compute."""
    return jnp.asarray(values, jnp.zeros(()).dtype)


def round_up(count: int) -> int:
    """Return the next power of two, at least 16: data sets of similar size share one compilation."""
    return max(16, 1 << max(count - 1, 0).bit_length())


def checked_rows(
    estimator: BaseEstimator, X: Table, y: Table, alpha: Table, *, reset: bool, least: int
) -> tuple[Float[np.ndarray, "n d"], np.ndarray, Float[np.ndarray, "n"]]:
    """Return inputs, targets and variances without the rows whose target is NaN or None; at least `least` must remain.

    The number and names of the estimator's columns are set in a fit (`reset`) and checked otherwise.
    """
    given = _as_floats(y)
    gaps = np.zeros((), bool)
    if isinstance(given, np.ndarray) and given.dtype.kind == "f" and given.ndim in (1, 2):
        gaps = np.isnan(given)
        given = np.where(gaps, 0.0, given)
    X, columns = validate_data(
        estimator, X, given, reset=reset, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=least
    )
    rows, values = np.asarray(X), np.asarray(columns, np.float64)
    variances = np.asarray(alpha, np.float64)
    if variances.shape not in ((), (len(rows),)):
        raise ValueError(f"alpha must be a variance or one for each of {len(rows)} rows, got shape {variances.shape}")
    variances = np.broadcast_to(variances, len(rows))
    if gaps.any():
        kept = ~gaps.reshape(len(rows), -1).any(axis=1)
        missing = np.count_nonzero(~kept)
        if len(rows) - missing < least:
            raise ValueError(f"{missing} of {len(rows)} rows have a NaN target; at least {least} must remain")
        warnings.warn(f"{missing} rows with a NaN target are left out", UserWarning, stacklevel=5)
        rows, values, variances = rows[kept], values[kept], variances[kept]
    if not (np.isfinite(variances).all() and (variances >= 0).all()):
        ends = f"{variances.min():g} to {variances.max():g}"
        raise ValueError(f"alpha holds variances, finite and not negative, got {ends}")
    return rows, values, variances


def without_copies(
    X: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m"]]:
    """Return each place once if a table was copied: rows at one place always have one target, and half of them are repeats.

    Copies of a whole table would suggest that there is no noise. Of a function without noise nothing is lost. Some rows that come
    again stay: others may, too.

    Example:
        >>> x = np.array([[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]])
        >>> copied, noisy = np.array([3.0, 3.0, 4.0, 4.0, 5.0, 5.0]), np.array([3.0, 3.1, 4.0, 4.0, 5.0, 5.0])
        >>> [len(without_copies(x, y)[1]) for y in (copied, noisy)]
        [3, 6]
    """
    first, group = np.unique(X, axis=0, return_index=True, return_inverse=True)[1:]
    copied = LEAST_ROWS <= len(first) <= len(y) / 2 and np.array_equal(y[first][group.ravel()], y)
    rows = np.sort(first) if copied else np.arange(len(y))
    return X[rows], y[rows]


def checked_targets(y: Table, rows: int, outputs: int) -> Float[np.ndarray, "rows outputs"]:
    """Return finite values for `rows` predictions of `outputs` outputs."""
    values = np.asarray(y, np.float64)
    allowed = [(rows,), (rows, 1)] if outputs == 1 else [(rows, outputs)]
    if values.shape not in allowed:
        expected = f"expected y of shape {allowed[0]} for {rows} rows of X and {outputs} outputs"
        raise ValueError(f"{expected}, got {values.shape}")
    assert_all_finite(values, input_name="y")  # the density of a value that is missing is not defined
    return values.reshape(rows, outputs)


def _as_floats(y: Table) -> Any:
    """Return an array of numbers where `y` can be read as one; a None among them is a missing value."""
    given = np.asarray(y) if y is not None else None
    if given is None or given.dtype.kind != "O":
        return given
    try:
        return given.astype(np.float64)
    except (TypeError, ValueError):
        return given  # scikit-learn says what is wrong with it


def _spread(x: np.ndarray, of_constant: float) -> np.ndarray:
    size = np.abs(x).max(axis=0)
    scale = x.std(axis=0)
    return np.where(scale > ROUNDING * size, scale, of_constant * np.where(size > 0, size, 1.0))
