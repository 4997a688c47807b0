"""What a fitted regressor says about the rows of a table, as further columns."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from bieqno.lab.nearest import did_you_mean
from bieqno.regression import GGPRegressor


def known_inputs(fitted: GGPRegressor, frame: pd.DataFrame, model: Path, table: Path) -> list[str]:
    """The columns that the model was fitted with, in its order."""
    names = getattr(fitted, "feature_names_in_", None)
    if names is None:  # fitted in Python on plain arrays
        if len(frame.columns) != fitted.n_features_in_:
            raise ValueError(
                f"{model} knows no names of columns and takes {fitted.n_features_in_}; {table} has {len(frame.columns)}"
            )
        return list(frame.columns)
    missing = [str(name) for name in names if name not in frame.columns]
    if missing:
        unused = [name for name in frame.columns if name not in set(names)]
        hints = [f"{name!r} ({did_you_mean(name, unused)})" for name in missing]
        raise ValueError(f"{table} lacks {len(missing)} of the {len(names)} columns of {model}: {', '.join(hints)}")
    return [str(name) for name in names]


def predictions(
    fitted: GGPRegressor, X: pd.DataFrame | np.ndarray, probabilities: list[float], samples: int, seed: int
) -> pd.DataFrame:
    """Mean, standard deviation, quantiles and joint draws at some points, a column each."""
    mean, std = (np.reshape(part, (len(X), -1)) for part in fitted.predict(X, return_std=True))
    draws = fitted.sample_y(X, samples, seed).reshape(*mean.shape, samples) if samples else None
    names = getattr(fitted, "target_names_", None)
    names = [f"y{k + 1}" for k in range(mean.shape[1])] if names is None else names
    columns: dict[str, np.ndarray] = {}
    for k, name in enumerate(names):
        prefix = f"{name}_" if len(names) > 1 else ""
        columns |= {f"{prefix}mean": mean[:, k], f"{prefix}sd": std[:, k]}
        columns |= {f"{prefix}q{p:g}": mean[:, k] + norm.ppf(p) * std[:, k] for p in probabilities}
        if draws is not None:
            columns |= {f"{prefix}sample_{i + 1}": draws[:, k, i] for i in range(samples)}
    return pd.DataFrame(columns)
