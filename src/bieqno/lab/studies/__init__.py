"""The studies of the paper and beyond: each with settings, presets and ``study(settings, run) -> rows, arrays``."""

from bieqno.lab.provenance import provenance, run_key
from bieqno.lab.results import Result, Row, read_result, write_result
from bieqno.lab.studies import (
    coverage,
    dapper,
    demo,
    ennf_options,
    irregular,
    joint,
    leaf_river,
    linear_gaussian,
    lorenz,
    measles,
    mnmef,
    neural_process,
    other_functions,
    psef,
    qg,
    real_data,
    scale,
    step_1d,
    super_filter,
    tables,
    trig_2d,
    zero_shot,
)
from bieqno.lab.study import Cases, Description, Experiment, Progress

_ALL: tuple[Experiment, ...] = (
    *(study.EXPERIMENT for study in (demo, step_1d, trig_2d)),
    *(other_functions.CHIRP, other_functions.KINK),
    *(study.EXPERIMENT for study in (real_data, tables, neural_process, joint, coverage)),
    *(lorenz.LORENZ63, lorenz.LORENZ96, super_filter.EXPERIMENT, ennf_options.EXPERIMENT),
    *(lorenz.LORENZ63_TRUTH, lorenz.LORENZ96_TRUTH, mnmef.STANDARD),
    *(study.EXPERIMENT for study in (linear_gaussian, mnmef, psef, irregular, scale, qg)),
    *(study.EXPERIMENT for study in (dapper, measles, leaf_river, zero_shot)),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}

__all__ = ["EXPERIMENTS", "Cases", "Description", "Experiment", "Progress", "Result", "Row", "provenance"]
__all__ += ["read_result", "run_key", "write_result"]
