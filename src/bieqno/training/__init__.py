"""The one training loop of the project, and what it is made of."""

from bieqno.training.epochs import EpochLoss, Epochs
from bieqno.training.loop import ADAM, fit
from bieqno.training.record import FitResult, Progress, TrainingError
from bieqno.training.schedule import falling_adam, falling_muon
from bieqno.training.step import StoredData, trainable

__all__ = ["ADAM", "EpochLoss", "Epochs", "FitResult", "Progress", "StoredData", "TrainingError"]
__all__ += ["falling_adam", "falling_muon", "fit", "trainable"]
