"""The one training loop of the project, and what it is made of."""

from bieqno.training.loop import ADAM, fit
from bieqno.training.result import FitResult, Progress, TrainingError
from bieqno.training.sources import StoredData
from bieqno.training.step import trainable

__all__ = ["ADAM", "FitResult", "Progress", "StoredData", "TrainingError", "fit", "trainable"]
