"""Study ``linear-gaussian``: a system whose posterior is known, so that the distance to the best possible is.

Waves that travel round a ring of 20 variables, are damped and disturbed by noise; every second variable is observed.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import LinearModel, NoisyModel, Observation, Places, System
from bieqno.lab.compare import DIVERGED, Arrays, Method
from bieqno.lab.methods.ennf_truth import truth_study
from bieqno.lab.methods.filters import FilterSettings, TwinTest, classical_filters
from bieqno.lab.studies import mnmef
from bieqno.lab.study import Description, Experiment, Findings, Run

EXACT = "Kalman filter, exact"
SIZE, STEP = 20, 2
DAMPING, SHIFT, NOISE, ERROR = 0.97, 0.4, 0.3, 0.7
DESCRIPTION = Description(
    title="A linear system, beside the exact posterior",
    question="Waves travel round a ring of 20 variables, every second of which is observed. The system is linear and its errors "
    "Gaussian: the Kalman filter gives the exact posterior. How near does an ensemble of a few members come to it?",
    minutes={"smoke": 1.5, "quick": 5.0, "paper": 30.0},
    methods=("EnNF", EXACT, "LETKF tuned", "ETKF tuned"),
)
SIZES = (5, 10, 20)
TRUTHS = {5: 6, 10: 4, 20: 3}  # in training, by ensemble size
PRESETS = {
    "smoke": replace(mnmef.SMOKE, sizes=(5,), tuned_sizes=(5,)),
    "quick": FilterSettings("quick", SIZES, SIZES, 16, 500, 100, (4, 200), training={"sizes": TRUTHS, "steps": 1500}),
    "paper": FilterSettings("paper", SIZES, SIZES, 64, 1100, 100, (8, 400), training={"sizes": TRUTHS, "steps": 6000}),
}


def ring() -> System:
    """Return the system; a shift by a fraction of the distance between two variables is one of each wave's phase."""
    waves = np.fft.rfftfreq(SIZE)
    moved = np.exp(-2j * np.pi * waves * SHIFT)
    first = np.fft.irfft(moved, SIZE)
    matrix = DAMPING * np.stack([np.roll(first, k) for k in range(SIZE)], axis=1)
    model = NoisyModel(LinearModel(jnp.asarray(matrix, float)), NOISE)
    places = Places.grid(SIZE, period=float(SIZE))
    return System(model, Observation(range(0, SIZE, STEP), ERROR), jnp.zeros(SIZE), places, 1e3, spread=1.0)


def kalman(test: TwinTest) -> Arrays:
    """Return mean and standard deviation of the exact posterior of every truth."""
    system, trials = test.system, test.trials
    M, Q = system.model.model.matrix, NOISE**2 * jnp.eye(SIZE)  # type: ignore[union-attr]
    H, R = jnp.eye(SIZE)[::STEP], ERROR**2 * jnp.eye(SIZE // STEP)

    def window(carry: tuple[Array, Array], value: Float[Array, "m"]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        mean, P = M @ carry[0], M @ carry[1] @ M.T + Q
        K = jnp.linalg.solve(H @ P @ H.T + R, H @ P).T
        mean, P = mean + K @ (value - H @ mean), P - K @ H @ P
        return (mean, P), (mean, jnp.sqrt(jnp.diag(P)))

    start = jnp.mean(trials.ensembles, axis=1)
    run = jax.jit(jax.vmap(lambda mean, values: jax.lax.scan(window, (mean, jnp.eye(SIZE)), values)[1]))
    mean, spread = run(start, trials.twins.observations.value)
    # The score of a spread counts the sampling error of a mean of members, which this one does not have.
    members = trials.ensembles.shape[1]
    spread = spread / np.sqrt((members + 1) / members)
    none = np.full(len(start), -1)
    return {"mean": np.asarray(mean), "spread": np.asarray(spread), DIVERGED: none}


def study(s: FilterSettings, run: Run) -> Findings:
    """Train against truths of the system, and compare with the exact posterior and with tuned filters."""
    system = ring()
    found = classical_filters(system, radius=(1.5, 2.0, 3.0, 5.0, 8.0))
    opponents = [found[name] for name in ("LETKF tuned", "ETKF tuned")]
    return truth_study(s, run, system, opponents, others=[Method(EXACT, kalman)])


EXPERIMENT = Experiment("linear-gaussian", DESCRIPTION, PRESETS, study)
