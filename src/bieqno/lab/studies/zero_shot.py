"""Study ``zero-shot``: the pretrained filter on systems that it has never seen, beside filters tuned or trained for each.

The systems were chosen before the training, which left them out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.lab.compare import Arrays, Case, Method, compare
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_truth import train_against_truth
from bieqno.lab.papers import LIMIT, sakov_lorenz96, sparse_ring
from bieqno.lab.results import Row
from bieqno.lab.study import Description, Experiment, Findings, Run

NAME, FINE_TUNED, LETKF = "pretrained EnNF", "pretrained EnNF, fine-tuned", "LETKF tuned"
TRAINED = (FINE_TUNED, filters.LEARNED)
DESCRIPTION = Description(
    title="A filter for a model it has never seen",
    question="One filter is used as it comes with the package on five systems that its training left out. Nothing is tuned or "
    "trained for them (but the first two were looked at when its constants were chosen). "
    "Is it as good as an LETKF whose radius and inflation are tuned for that very system and ensemble size, how far is it from a "
    "filter that is trained for the system, and what do both lose where the forcing of the model is wrong by a tenth?",
    minutes={"smoke": 2.0, "quick": 80.0, "paper": 600.0},
    methods=(NAME, *TRAINED, LETKF),
)


class TwoFields(eqx.Module):
    """The model of Vissio and Lucarini (2020, Eur. Phys. J. Plus 135): winds and temperatures round a circle of latitude.

    Lorenz-96 with a second field that the winds carry, and that drives them.
    """

    forcing: float = 10.0
    heating: float = 10.0
    coupling: float = 1.0

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of a state: all winds, then all temperatures."""
        x, t = jnp.split(state, 2)
        ahead, behind = jnp.roll(x, -1), jnp.roll(x, 1)
        wind = behind * (ahead - jnp.roll(x, 2)) - self.coupling * t - x + self.forcing
        heat = ahead * jnp.roll(t, -2) - behind * jnp.roll(t, 2) - t + self.coupling * x + self.heating
        return jnp.concatenate([wind, heat])


class ShallowWater(da.AbstractEnsembleModel):
    """Height and velocity of a shallow layer of water on a ring of circumference 2 pi, stirred by random long waves."""

    size: int = eqx.field(static=True)
    window: float = eqx.field(static=True, default=0.2)
    drag: float = 0.1
    viscosity: float = 0.02
    stirring: float = 0.03

    def tendency(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the time derivative of a state: height over its mean of one, then velocity."""
        height, speed = jnp.split(state, 2)
        width = 2 * np.pi / self.size

        def slope(x: Float[Array, "s"]) -> Float[Array, "s"]:
            return (jnp.roll(x, -1) - jnp.roll(x, 1)) / (2 * width)

        def smoothing(x: Float[Array, "s"]) -> Float[Array, "s"]:
            return self.viscosity * (jnp.roll(x, -1) - 2 * x + jnp.roll(x, 1)) / width**2

        rising = -slope((1 + height) * speed) + smoothing(height) - self.drag * height
        return jnp.concatenate([rising, -slope(speed**2 / 2 + height) + smoothing(speed) - self.drag * speed])

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later, with random waves of its velocity."""
        place = np.arange(self.size) * 2 * np.pi / self.size
        waves = np.concatenate([[np.cos(k * place), np.sin(k * place)] for k in (1, 2, 3)])
        stirred = self.stirring * jax.random.normal(key, (len(ensemble), len(waves)), ensemble.dtype)
        carried = jax.vmap(lambda z: da.rk4(self.tendency, z, step=self.window / 10, steps=10))(ensemble)
        return carried.at[:, self.size :].add(stirred @ jnp.asarray(waves, ensemble.dtype))


@dataclass(frozen=True)
class LeftOut:
    """A system that is left out of training, and the settings of an LETKF that are tried for it."""

    system: Callable[[], da.System]
    radius: tuple[float, ...]
    inflation: tuple[float, ...] = (1.0, 1.01, 1.02, 1.04, 1.07, 1.12, 1.2, 1.3, 1.45)


def two_fields() -> da.System:
    """Return 36 winds and temperatures, of which every second wind and every fourth temperature is observed."""
    observation = da.Observation([*range(0, 36, 2), *range(36, 72, 4)], 1.0)
    start = jnp.full(72, 2.0).at[3].add(0.1)
    places = da.Places.grid(36, fields=2, period=36.0)
    return da.System(da.Flow(TwoFields(), window=0.05, step=0.025), observation, start, places, LIMIT, spread=1.0)


def shallow_water(size: int = 60) -> da.System:
    """Return shallow water of which the height is observed at every third place."""
    observation = da.Observation(range(0, size, 3), 0.03)
    places = da.Places.grid(size, fields=2, period=float(size))
    return da.System(ShallowWater(size), observation, jnp.zeros(2 * size), places, 1e2, spread=0.1)


def turbulence(side: int = 64) -> da.System:
    """Return turbulence on a torus, observed at every fourth point along both axes."""
    numbers = np.arange(side**2).reshape(side, side)[::4, ::4].reshape(-1)
    model, places = da.Barotropic(side), da.Places.grid(side, side, period=float(side))
    start = jax.random.normal(jax.random.key(0), (side**2,))
    return da.System(model, da.Observation(numbers, 1.0), start, places, LIMIT)


LEFT_OUT = {
    "Lorenz-96 standard": LeftOut(sakov_lorenz96, (3.0, 4.0, 5.5, 7.5, 10.0, 13.0, 17.0, 20.0)),
    "Lorenz-96 sparse": LeftOut(sparse_ring, (3.0, 4.0, 5.5, 7.5, 10.0, 13.0, 17.0, 20.0)),
    "two fields": LeftOut(two_fields, (2.0, 3.0, 4.5, 6.5, 9.0, 13.0, 18.0)),
    "shallow water": LeftOut(shallow_water, (4.0, 6.0, 9.0, 13.0, 18.0, 25.0)),
    "turbulence": LeftOut(turbulence, (5.0, 7.0, 10.0, 14.0, 20.0), (1.0, 1.02, 1.05, 1.1, 1.2, 1.35)),
}
"""By name; the ring of the first two is of 40 variables with a forcing of 8, which training leaves out."""
WRONG = {f"{name}, wrong forcing": name for name in ("Lorenz-96 standard", "Lorenz-96 sparse")}
"""The same truths as those of another name, and forecasts with a forcing that is a tenth too large."""
TRUTHS = {5: 5, 10: 3, 20: 2}  # in training, by ensemble size


@dataclass(frozen=True)
class Settings:
    """What is run: the systems by name, ensemble sizes, unseen truths, and number and length of those to tune on.

    On the `taught` systems there are a filter that is trained from nothing, and the pretrained one with a tenth of its steps.
    """

    preset: str
    systems: tuple[str, ...] = (*LEFT_OUT, *WRONG)
    sizes: tuple[int, ...] = (5, 10, 20)
    truths: int = 32
    windows: int = 500
    burn_in: int = 100
    tuning: tuple[int, int] = (8, 300)
    side: int = 64  # of the torus
    taught: tuple[str, ...] = tuple(LEFT_OUT)
    student: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=lambda: {"sizes": TRUTHS, "steps": 5000})
    validation: Mapping[str, Any] = field(default_factory=dict)


_FEW: dict[str, Any] = {"sizes": {5: 2}, "steps": 20}
_SMALL: dict[str, Any] = {"student": {"width": 8, "channels": 2}, "validation": filters.SMOKE_VALIDATION}
PRESETS = {
    "smoke": Settings("smoke", tuple(WRONG.values())[1:], (5,), 2, 12, 2, (2, 12), training=_FEW, **_SMALL),
    "quick": Settings(
        "quick",
        truths=4,
        windows=300,
        tuning=(3, 150),
        side=32,
        taught=tuple(LEFT_OUT)[:4],
        training={"sizes": TRUTHS, "steps": 1000},
    ),
    "paper": Settings("paper"),
}


def study(s: Settings, run: Run) -> Findings:
    """Run all filters on unseen truths of each system."""
    trained = cache(partial(_trained, s, run))
    plan = [entry for name in s.systems for entry in _of_system(s, run, name, trained)]
    rows = filters.filter_rows(compare(run, plan, filters.score_filter))
    trainings = [(name, method) for name in s.systems if name in s.taught for method in TRAINED if run.wants(method)]
    seconds = [(name, method, float(trained(name, method)["seconds"])) for name, method in trainings]
    return rows + [Row.of(f"training, {name}", method, "seconds", [value]) for name, method, value in seconds], {}


def _of_system(
    s: Settings, run: Run, name: str, trained: Callable[[str, str], Arrays]
) -> list[tuple[Case[filters.TwinTest], Method[filters.TwinTest]]]:
    """Return what is compared on one system; `trained` gives what training there by a method found."""
    right = WRONG.get(name, name)
    left_out, true_system = LEFT_OUT[right], cache(partial(_left_out, s, right))
    system = cache(lambda: with_wrong_forcing(true_system()) if name in WRONG else true_system())
    truth_key, tune_key, run_key = jax.random.split(_key(run, right), 3)

    @cache
    def test(protocol: str, size: int) -> filters.TwinTest:
        make: Any = partial(da.make_trials, true_system(), members=size)
        tuning_trials = partial(make, s.tuning[1], truths=s.tuning[0], key=tune_key)
        trials, skipped = make(s.windows, truths=s.truths, key=truth_key), min(s.burn_in, s.tuning[1] // 3)
        label = f"N={size}, {protocol}"
        return filters.TwinTest(system(), trials, lambda: (tuning_trials(), skipped), run_key, s.burn_in, label=label)

    def letkf(test: filters.TwinTest) -> Any:
        grid: Any = {"inflation": left_out.inflation, "radius": left_out.radius}
        return filters.tuned(filters.classical_filters(system(), **grid)[LETKF], run).run(test)

    def learned(method: str) -> da.Filter:
        return filters.as_filter(trained(name, method)["filter"])

    methods = [filters.fixed(NAME, lambda: da.LocalEnNF.pretrained().at(system())), Method(LETKF, letkf)]
    if name in s.taught:
        methods += [filters.fixed(method, partial(learned, method)) for method in TRAINED]
    cases = [filters.twin_case(test, name, size) for size in s.sizes]
    return [(case, method) for case in cases for method in methods]


def _trained(s: Settings, run: Run, name: str, method: str) -> Arrays:
    """Train a filter for a system, from nothing or from the pretrained one."""
    system, begin, own = _left_out(s, name), None, s
    if method == FINE_TUNED:
        begin = da.LocalEnNF.pretrained().at(system)
        own = replace(s, training={**s.training, "steps": s.training["steps"] // 10})
    key = jax.random.fold_in(_key(run, name), 0)
    return train_against_truth(own, run, system, name=f"training of {method}, {name}", begin=begin, key=key)


def _key(run: Run, name: str) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(run.seed), list(LEFT_OUT).index(name))


def _left_out(s: Settings, name: str) -> da.System:
    return turbulence(s.side) if name == "turbulence" else LEFT_OUT[name].system()


def with_wrong_forcing(system: da.System) -> da.System:
    """Return a system of Lorenz-96 whose model has a forcing that is a tenth too large."""
    model: Any = system.model
    return replace(system, model=replace(model, forcing=1.1 * model.forcing))


EXPERIMENT = Experiment("zero-shot", DESCRIPTION, PRESETS, study)
