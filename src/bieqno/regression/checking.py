"""What the regressor accepts as data: finite numbers, in the right shape, rows without a target left out."""

import warnings
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

Table: TypeAlias = Any
"""Whatever scikit-learn turns into an array: lists, NumPy arrays, data frames."""


def checked_rows(
    estimator: BaseEstimator, X: Table, y: Table, alpha: Table, *, reset: bool, least: int
) -> tuple[Float[np.ndarray, "n d"], np.ndarray, Float[np.ndarray, "n"]]:
    """Inputs, targets and variances without the rows whose target is missing.

    Args:
        estimator: which one is to be told the number of columns, or knows it.
        X: inputs.
        y: targets, with NaN or None where they are missing.
        alpha: a variance, or one for each row.
        reset: whether this is a fit.
        least: number of rows that must remain.

    Raises:
        ValueError: if something does not fit, naming it.
    """
    given = _as_floats(y)
    missing = _missing_rows(given)
    filled = given if missing is None else np.where(np.isnan(given), 0.0, given)
    X, columns = validate_data(
        estimator, X, filled, reset=reset, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=least
    )
    rows, values = np.asarray(X), np.asarray(columns, np.float64)
    variances = np.asarray(alpha, np.float64)
    if variances.ndim > 1 or (variances.ndim == 1 and len(variances) != len(rows)):
        raise ValueError(f"alpha must be a variance or one for each of {len(rows)} rows, got shape {variances.shape}")
    variances = np.broadcast_to(variances, len(rows))
    if missing is not None and missing.any():
        if len(rows) - missing.sum() < least:
            raise ValueError(f"{missing.sum()} of {len(rows)} rows have a NaN target; at least {least} must remain")
        warnings.warn(f"{missing.sum()} rows with a NaN target are left out", UserWarning, stacklevel=3)
        rows, values, variances = rows[~missing], values[~missing], variances[~missing]
    if not (np.isfinite(variances).all() and (variances >= 0).all()):
        raise ValueError(
            f"alpha holds variances, finite and not negative, got {variances.min():g} to {variances.max():g}"
        )
    return rows, values, variances


def checked_targets(y: Table, rows: int, outputs: int) -> Float[np.ndarray, "rows outputs"]:
    """Finite values for `rows` predictions of `outputs` outputs.

    Raises:
        ValueError: if their shape is another, or some are not finite.
    """
    values = np.asarray(y, np.float64)
    allowed = [(rows,), (rows, 1)] if outputs == 1 else [(rows, outputs)]
    if values.shape not in allowed:
        raise ValueError(
            f"expected y of shape {allowed[0]} for {rows} rows of X and {outputs} outputs, got {values.shape}"
        )
    if not np.isfinite(values).all():
        raise ValueError("y holds NaN or infinity: the density of a value that is missing is not defined")
    return values.reshape(rows, outputs)


def _as_floats(y: Table) -> Any:
    """An array of numbers where `y` can be read as one; a None among them is a missing value."""
    given = np.asarray(y) if y is not None else None
    if given is None or given.dtype.kind != "O":
        return given
    try:
        return given.astype(np.float64)
    except (TypeError, ValueError):
        return given  # scikit-learn says what is wrong with it


def _missing_rows(y: Any) -> np.ndarray | None:
    """Rows with a NaN among their targets; None if `y` is nothing that could have one."""
    if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or y.ndim not in (1, 2):
        return None
    return np.asarray(np.isnan(y).any(axis=tuple(range(1, y.ndim))))
