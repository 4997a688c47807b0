"""Sequential data assimilation: models, observations, filters, twin experiments."""

from bieqno.assimilation.dataset import load_dataset, save_dataset, to_dataset
from bieqno.assimilation.filters import (
    ETKF,
    LETKF,
    Climatology,
    EnKF,
    EnNF,
    Filter,
    Floored,
    Inflated,
    IterativeEnKF,
    LearnedGain,
    LocalEnNF,
    LocalUpdate,
    ParticleFilter,
    PriorInflated,
    Relaxed,
    Rotated,
    SerialEnSRF,
    ThreeDVar,
    inflate,
    random_rotation,
)
from bieqno.assimilation.geometry import Places, Surroundings
from bieqno.assimilation.imitation import imitate
from bieqno.assimilation.laws import AffineLaw
from bieqno.assimilation.lessons import Lessons, teach
from bieqno.assimilation.localization import Neighbours, distances, gaspari_cohn
from bieqno.assimilation.models import (
    AbstractEnsembleModel,
    Flow,
    HostModel,
    LinearModel,
    Lorenz63,
    Lorenz96,
    NoisyModel,
    append_parameters,
    forecast,
    rk4,
)
from bieqno.assimilation.observation import Observation, Observed
from bieqno.assimilation.records import Record, keep_ensembles, keep_mean, keep_moments, keep_triples
from bieqno.assimilation.storage import load_filter, save_filter
from bieqno.assimilation.summary import summarise
from bieqno.assimilation.training import train_filter
from bieqno.assimilation.trials import Trials, make_trials, sweep
from bieqno.assimilation.tuning import Tuning, tune
from bieqno.assimilation.twin import Observations, Run, Twin, cycle, simulate, spin_up

__all__ = [
    "ETKF",
    "LETKF",
    "AbstractEnsembleModel",
    "AffineLaw",
    "Climatology",
    "EnKF",
    "EnNF",
    "Filter",
    "Floored",
    "Flow",
    "HostModel",
    "Inflated",
    "IterativeEnKF",
    "LearnedGain",
    "Lessons",
    "LinearModel",
    "LocalEnNF",
    "LocalUpdate",
    "Lorenz63",
    "Lorenz96",
    "Neighbours",
    "NoisyModel",
    "Observation",
    "Observations",
    "Observed",
    "ParticleFilter",
    "Places",
    "PriorInflated",
    "Record",
    "Relaxed",
    "Rotated",
    "Run",
    "SerialEnSRF",
    "Surroundings",
    "ThreeDVar",
    "Trials",
    "Tuning",
    "Twin",
    "append_parameters",
    "cycle",
    "distances",
    "forecast",
    "gaspari_cohn",
    "imitate",
    "inflate",
    "keep_ensembles",
    "keep_mean",
    "keep_moments",
    "keep_triples",
    "load_dataset",
    "load_filter",
    "make_trials",
    "random_rotation",
    "rk4",
    "save_dataset",
    "save_filter",
    "simulate",
    "spin_up",
    "summarise",
    "sweep",
    "teach",
    "to_dataset",
    "train_filter",
    "tune",
]
