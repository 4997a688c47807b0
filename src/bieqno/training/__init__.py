"""The one training loop of the project, and what it is made of."""

from bieqno.training.epochs import EpochLoss, Epochs
from bieqno.training.loop import ADAM, fit
from bieqno.training.record import FitResult, Progress, TrainingError
from bieqno.training.schedule import falling_adam
from bieqno.training.step import StoredData, trainable

__all__ = ["ADAM", "EpochLoss", "Epochs", "FitResult", "Progress", "StoredData", "TrainingError", "falling_adam", "fit"]
__all__ += ["trainable"]
