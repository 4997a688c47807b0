"""What the file of a fitted regressor holds, and what it is checked for before any of it is used."""

from typing import Any

import equinox as eqx
import numpy as np

from bieqno.regression.held_out import HeldOut
from bieqno.regression.pretrained import LocalProcess, Trend, ZeroShot
from bieqno.regression.scaling import Scaling
from bieqno.regression.trained.fitted import FittedProcess
from bieqno.regression.trained.process import GeneralizedGaussianProcess
from bieqno.regression.trained.splits import Data

# What a fit finds beside the processes; `load` gives it back.
FOUND = (
    "n_features_in_", "feature_names_in_", "target_names_", "single_output_", "fold_seed_", "n_iter_",
)  # fmt: skip


class Saved(eqx.Module):
    """What `GGPRegressor.save` writes."""

    settings: dict[str, Any] = eqx.field(static=True)
    found: dict[str, Any] = eqx.field(static=True)
    processes: tuple[FittedProcess | ZeroShot, ...]

    def __check_init__(self) -> None:
        if not self.processes or any(not isinstance(one, (FittedProcess, ZeroShot)) for one in self.processes):
            raise ValueError("it holds no fitted processes")
        size = len(self.processes[0].scaling.input_shift)
        if any(len(process.scaling.input_shift) != size for process in self.processes):
            raise ValueError("its outputs differ in their number of inputs")
        names = self.found.get("feature_names_in_")
        if self.found.get("n_features_in_") != size or (names is not None and len(names) != size):
            raise ValueError(f"it names {self.found.get('n_features_in_')} inputs, its processes have {size}")
        if set(self.found) | {"feature_names_in_"} != set(FOUND):
            differing = sorted(set(self.found) ^ (set(FOUND) - {"feature_names_in_"}))
            raise ValueError(f"it differs from what a fit finds in {differing}")


STORED = (Saved, FittedProcess, GeneralizedGaussianProcess, Scaling, Data, HeldOut, ZeroShot, LocalProcess, Trend)


def plain(value: Any) -> Any:
    """Arrays as lists, which any file can hold; strings among them too."""
    return value.tolist() if isinstance(value, np.ndarray) else value
