"""Study ``scale``: rings of up to ten million variables, on one process and on several."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bieqno.assimilation as da
from bieqno.lab.compare import Arrays
from bieqno.lab.methods.ennf_truth import train_against_truth
from bieqno.lab.methods.scale_process import Job
from bieqno.lab.papers import sparse_ring
from bieqno.lab.results import Row
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run

DESCRIPTION = Description(
    title="Ten million variables, on several processes",
    question="Weights from a ring of 40 variables are used on rings of up to ten million, whose variables are spread over "
    "processes. What is the error per variable, and what do time, memory and the bytes that processes exchange become?",
    claim="None; the paper's filter does not grow.",
    minutes={"smoke": 4.0, "quick": 10.0, "paper": 45.0},
    methods=("EnNF", "LETKF tuned"),
)


@dataclass(frozen=True)
class Settings:
    """Rings of some `sizes`, each on some numbers of `processes` with one thread each, N = `members`.

    Errors are of the second half of the `windows` of one truth, on `SCORED` processes. `weak` is the number of variables per
    process of a series with as many on each; `tuning` is number, length and variables of the truths that the LETKF is tuned on:
    a filter that blows up once among millions of variables has to show it.
    """

    preset: str
    sizes: tuple[int, ...]
    processes: tuple[int, ...]
    weak: int
    members: int = 10
    windows: int = 16
    tuning: tuple[int, int, int] = (4, 200, 4000)
    student: Mapping[str, Any] = field(default_factory=lambda: {"width": 16, "channels": 4})
    training: Mapping[str, Any] = field(default_factory=lambda: {"sizes": {10: 8}, "steps": 1000})
    validation: Mapping[str, Any] = field(default_factory=dict)


SCORED = 2  # processes, of which an error takes half the time that one takes
_SMALL = {name: getattr(mnmef.SMOKE, name) for name in ("student", "training", "validation")}
PRESETS = {
    "smoke": Settings("smoke", (800,), (1, 2), 400, 5, 4, (2, 20, 40), **_SMALL),
    "quick": Settings("quick", (100_000,), (1, 2), 100_000),
    "paper": Settings("paper", (100_000, 1_000_000, 10_000_000), (1, 2, 4), 1_000_000),
}


def study(s: Settings, run: Run) -> Findings:
    """Train on 40 variables and tune on more, then measure every ring on every number of processes."""
    train_key, tune_key, run_key = jax.random.split(jax.random.key(run.seed), 3)

    def search() -> Arrays:
        return mnmef.tuned_settings(s.members, s.tuning, tune_key, run_key)

    @cache
    def trained() -> bytes:
        return train_against_truth(s, run.between(0.0, 0.5), sparse_ring(), key=train_key)["filter"].tobytes()

    @cache
    def settled() -> dict[str, float]:
        found = run.cases.take("tuning", search)
        return {name: float(found[name]) for name in ("radius", "inflation")}

    places = [(size, count) for size in s.sizes for count in s.processes]  # strong scaling
    places += [(s.weak * count, count) for count in s.processes]  # and weak
    plan = [(place, name) for place in sorted(set(places)) for name in DESCRIPTION.methods if run.wants(name)]
    rows = []
    for number, ((size, count), name) in enumerate(plan):
        run.progress(f"{name}, {size:,} variables on {count}", 0.5 + 0.5 * number / len(plan))

        def compute(size: int = size, count: int = count, name: str = name) -> Arrays:
            windows = s.windows if size in s.sizes and count == SCORED else 0
            method = trained() if name == "EnNF" else settled()
            found = measured(Job(size, {}, s.members, windows, processes=count), name, method)
            return {metric: np.array(value) for metric, value in found.items()}

        found = run.cases.take(f"{name}, {size} on {count}", compute)
        about = {"ensemble_size": s.members, "protocol": f"{size:,} variables on {count}"}
        rows += [Row.of(f"n={size}", name, metric, [float(value)], **about) for metric, value in found.items()]
    return rows, {}


EXPERIMENT = Experiment("scale", DESCRIPTION, PRESETS, study)


def measured(job: Job, name: str, method: bytes | Mapping[str, float]) -> dict[str, float]:
    """Run the processes of a job, one thread each; return what the first one measured of a method, or that they failed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "", "NPROC": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    program = [sys.executable, "-m", "bieqno.lab.methods.scale_process"]
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "filter.bieqno", Path(folder) / "measured.json"
        if isinstance(method, bytes):
            da.save_filter(path, da.filter_from_bytes(method))
        about: Any = str(path) if isinstance(method, bytes) else dict(method)
        job = replace(job, methods={name: about}, address=address, out=str(out))
        jobs = [json.dumps(asdict(replace(job, process=number))) for number in range(job.processes)]
        started = [subprocess.Popen([*program, one], env=environment, stdout=subprocess.DEVNULL) for one in jobs]
        try:
            codes = [process.wait() for process in started]
        finally:
            for process in started:
                process.kill()
        if any(codes):  # where memory is short the system ends one of them, and the others with it: the rest continues
            return {"failed": 1.0}
        found: dict[str, float] = json.loads(out.read_text())[name]
    return found
