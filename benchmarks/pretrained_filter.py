"""The pretrained filter beside a tuned LETKF, on systems that the study ``zero-shot`` does not have, to choose settings on.

Rings of Lorenz-96, which is a family of its training, with forcings and networks of no study, one of them with a wrong forcing
in the forecasts; and the Kuramoto-Sivashinsky equation, of which no family is. The LETKF is tuned for each case on six truths
of their own. About five minutes of one core.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bieqno.assimilation as da
from bieqno.lab.methods.filters import classical_filters

TRUTHS, WINDOWS, BURN_IN = 4, 300, 100
INFLATION = (1.0, 1.02, 1.04, 1.07, 1.12, 1.2, 1.3, 1.45)


class KuramotoSivashinsky(da.AbstractEnsembleModel):
    """A flame front on a ring of length 44, by exponential time differencing (Kassam and Trefethen 2005)."""

    size: int = eqx.field(static=True, default=64)
    length: float = eqx.field(static=True, default=44.0)
    step: float = eqx.field(static=True, default=0.25)
    steps: int = eqx.field(static=True, default=4)

    def forecast(self, ensemble: Any, *inputs: Any, key: Any) -> Any:
        """Return the ensemble one time unit later."""
        h, number = self.step, np.arange(self.size // 2 + 1)
        k = 2 * np.pi / self.length * number
        linear, advection = k**2 - k**4, -0.5j * k * (number < self.size // 3)
        whole, half = np.exp(h * linear), np.exp(h * linear / 2)
        z = h * linear[:, None] + np.exp(1j * np.pi * (np.arange(1, 33) - 0.5) / 32)
        weights = (
            (np.exp(z / 2) - 1) / z,
            (-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3,
            2 * (2 + z + np.exp(z) * (z - 2)) / z**3,
            (-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3,
        )
        q, first, middle, last = (h * np.real(np.mean(weight, axis=1)) for weight in weights)

        def nonlinear(v: Any) -> Any:
            return advection * jnp.fft.rfft(jnp.fft.irfft(v, self.size) ** 2)

        def carried(v: Any, _: None) -> tuple[Any, None]:
            begin = nonlinear(v)
            a = half * v + q * begin
            at_a = nonlinear(a)
            at_b = nonlinear(half * v + q * at_a)
            at_c = nonlinear(half * a + q * (2 * at_b - begin))
            return whole * v + begin * first + (at_a + at_b) * middle + at_c * last, None

        return jnp.fft.irfft(jax.lax.scan(carried, jnp.fft.rfft(ensemble), None, self.steps)[0], self.size)


@dataclass(frozen=True)
class Case:
    """A system, the one of forecasts if that is another, ensemble sizes, and radii to try for the LETKF."""

    name: str
    system: da.System
    sizes: tuple[int, ...]
    radii: tuple[float, ...]
    forecasts: da.System | None = None


def ring(size: int, forcing: float, window: float, every: int, error: float) -> da.System:
    """Return Lorenz-96 with an observing network."""
    model = da.Lorenz96(size, forcing, window=window, step=min(0.05, window / round(window / 0.04)))
    state = jnp.full(size, forcing).at[0].add(0.1)
    places = da.Places.grid(size, period=float(size))
    return da.System(model, da.Observation(range(0, size, every), error), state, places, 1e3, spread=1.0)


def front() -> da.System:
    """Return the Kuramoto-Sivashinsky equation with every fourth of 64 points observed."""
    angle = 2 * np.pi * np.arange(64) / 64
    start = jnp.asarray(np.cos(angle) * (1 + np.sin(angle)), float)
    places = da.Places.grid(64, period=64.0)
    return da.System(KuramotoSivashinsky(), da.Observation(range(0, 64, 4), 0.5), start, places, 1e3, spread=1.0)


DENSE = (4.0, 6.0, 8.0, 11.0, 15.0)
CASES = (
    Case("48 variables, all observed, forcing 10", ring(48, 10.0, 0.05, 1, 1.0), (5, 10, 20), DENSE),
    Case(
        "the same, forecasts with forcing 11",
        ring(48, 10.0, 0.05, 1, 1.0),
        (10, 20),
        DENSE,
        ring(48, 11.0, 0.05, 1, 1.0),
    ),
    Case("36 variables, every third observed", ring(36, 9.0, 0.12, 3, 1.0), (5, 10), (3.0, 4.0, 6.0, 9.0, 13.0)),
    Case("40 variables, precise observations", ring(40, 7.0, 0.1, 2, 0.3), (5,), (4.0, 6.0, 9.0, 13.0, 18.0)),
    Case("Kuramoto-Sivashinsky", front(), (5, 10), (5.0, 8.0, 12.0, 17.0, 24.0)),
)


def score(filter: Any, system: da.System, trials: da.Trials) -> tuple[float, float]:
    """Return the mean error of the analysis mean after the burn-in, and spread over error."""
    kept = da.run_trials(filter, system, trials, key=jax.random.key(2)).kept
    error = np.asarray(kept["mean"] - trials.twins.truth)[:, BURN_IN:]
    members = trials.ensembles.shape[1]
    spread = np.sqrt((members + 1) / members) * np.asarray(kept["spread"])[:, BURN_IN:]
    return float(np.mean(np.sqrt(np.mean(error**2, axis=2)))), float(np.sqrt(np.mean(spread**2) / np.mean(error**2)))


def compare(case: Case, size: int) -> float:
    """Print the scores of one case, and return the pretrained filter's error over the tuned LETKF's."""
    system = case.forecasts or case.system
    tuning = da.make_trials(case.system, 250, truths=6, members=size, key=jax.random.key(5))
    trials = da.make_trials(case.system, WINDOWS, truths=TRUTHS, members=size, key=jax.random.key(11))
    letkf = classical_filters(system, inflation=INFLATION, radius=case.radii)["LETKF tuned"]
    settings = letkf.tune(system, tuning, 80, jax.random.key(1), rungs=2)
    theirs, their_spread = score(letkf.at(settings), system, trials)
    ours, our_spread = score(da.LocalEnNF.pretrained().at(system), system, trials)
    found = ", ".join(f"{name} {float(value):g}" for name, value in settings.items())
    print(
        f"{case.name}, N={size}: pretrained {ours:.3f} (spread / error {our_spread:.2f}), LETKF {theirs:.3f} "
        f"({their_spread:.2f}; {found}), ratio {ours / theirs:.2f}",
        flush=True,
    )
    return ours / theirs


def main() -> None:
    """Compare on all systems, or on those whose name holds a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only systems whose name holds this text, such as 48")
    asked = parser.parse_args()
    chosen = [case for case in CASES if asked.only in case.name]
    if not chosen:
        parser.error(f"no system has {asked.only!r} in its name; there are {'; '.join(case.name for case in CASES)}")
    ratios = [compare(case, size) for case in chosen for size in case.sizes]
    print(f"geometric mean of {len(ratios)} ratios {np.exp(np.mean(np.log(ratios))):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
