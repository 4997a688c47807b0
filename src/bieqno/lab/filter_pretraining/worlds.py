"""Random systems with random observing networks, stacked: what one compiled program trains on.

All have one shape: as many variables, observations padded to as many, those near a variable to one number, and distances to
two dimensions. A world knows which family its model is of, and the program has the models of all.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.assimilation import AbstractEnsembleModel, Observation, Places, Stencil, forecast
from bieqno.assimilation.filters.learned.surroundings import Surroundings, extent_of, shared
from bieqno.assimilation.neighbourhoods import near_radius
from bieqno.assimilation.observation import Observed
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, wrong

DENSITY, ERROR = (0.04, 1.0), (0.03, 2.0)  # of networks, and of observations in units of the climate
SIZE, NEAR, KINDS, DIMENSIONS = (
    48,
    44,
    3,
    2,
)  # variables, most observations near one, kinds and dimensions of all families
RUNS, KEPT = 8, 64  # free runs of each world, and the windows of each that are kept
ONE_KIND = 0.4  # share of networks that observe variables of one kind alone
WRONG = 0.25  # share of worlds whose forecasts have wrong parameters


class AnyModel(AbstractEnsembleModel):
    """A model of one of several families; those of the others are beside it and mean nothing."""

    number: Int[Array, "*w"]
    models: tuple[Any, ...]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""
        branches = [lambda z, k, model=model: forecast(model, z, key=k) for model in self.models]
        return jax.lax.switch(self.number, branches, ensemble, key)


class Operator(eqx.Module):
    """Observes some variables in units of the climate, as they are or bent."""

    indices: Int[Array, "m"]
    mean: Float[Array, "n"]
    deviation: Float[Array, "n"]
    bend: Int[Array, ""]

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        """Return the values, without error."""
        plain = ((state - self.mean) / self.deviation)[self.indices]
        bent = jnp.stack([plain, jnp.arctan(1.5 * plain), 2 * (jnp.exp(0.5 * jnp.clip(plain, -8, 8)) - 1)])
        return bent[self.bend]


class World(eqx.Module):
    """A true model, the one of forecasts, what is observed, and the size of the ensemble."""

    truth: Any
    model: Any
    states: Float[Array, "*w r n"]
    operator: Operator
    std: Float[Array, "*w m"]
    exists: Bool[Array, "*w m"]
    density: Float[Array, "*w"]  # share of values that there are in a window
    around: Surroundings
    members: Int[Array, "*w"]

    def observe(self, state: Float[Array, "n"], *, key: PRNGKeyArray) -> Observed:
        """Return what is observed of a true state in one window."""
        mask_key, error_key = jax.random.split(key)
        mask = self.exists & (jax.random.uniform(mask_key, self.exists.shape) < self.density)
        clean = self.operator(state)
        value = clean + self.std * jax.random.normal(error_key, clean.shape)
        return Observation(self.operator, self.std).window(value, mask=mask)


def draw_worlds(families: Sequence[Family], count: int, members: tuple[int, int], rng: np.random.Generator) -> World:
    """Draw some worlds of each family, stacked, the families by turns; their free runs stay finite."""
    examples = tuple(family.draw(rng) for family in families)
    made = [_of_family(family, count, members, rng) for family in families]

    def any_model(number: int, model: Any) -> AnyModel:
        return AnyModel(jnp.asarray(number), (*examples[:number], model, *examples[number + 1 :]))

    mixed = []
    for k in range(count):
        for number, worlds in enumerate(made):
            both = any_model(number, worlds[k].truth), any_model(number, worlds[k].model)
            mixed.append(eqx.tree_at(lambda w: (w.truth, w.model), worlds[k], both))
    return stacked(mixed)


def _of_family(family: Family, count: int, members: tuple[int, int], rng: np.random.Generator) -> list[World]:
    """Draw worlds of one family whose free runs stay finite."""
    drawn = [_draw(family, members, rng) for _ in range(count + count // 2)]
    rests = np.stack([[family.rest(rng) for _ in range(RUNS)] for _ in drawn])
    key = jax.random.key(int(rng.integers(2**31)))
    both = [stacked(models) for models in ([truth for truth, _ in drawn], [rest["model"] for _, rest in drawn])]
    # As in use the climate that members are kept within is that of the model of forecasts, right or wrong.
    states, possible = (np.asarray(_free_runs(m, jnp.asarray(rests, float), family.spin, key)) for m in both)
    kinds = family.places.kinds
    each = [states[..., kinds == kind] for kind in range(kinds.max() + 1)]
    mean, variance = (np.stack([f(x, axis=(1, 2)) for x in each], axis=1) for f in (np.mean, np.var))
    finite = np.isfinite(states).all(axis=(1, 2)) & np.isfinite(possible).all(axis=(1, 2))
    sound = [k for k in range(len(drawn)) if finite[k] and variance[k].min() > 1e-6][:count]
    if len(sound) < count:
        raise ValueError(f"only {len(sound)} of {len(drawn)} worlds of {family.name} stayed finite")
    made = []
    for k in sound:
        truth, rest = drawn[k]
        units = jnp.asarray(mean[k][kinds], float), jnp.asarray(np.sqrt(variance[k])[kinds], float)
        operator = Operator(rest.pop("indices"), *units, rest.pop("bend"))
        extent = shared(extent_of(jnp.asarray(possible[k])), kinds)
        rest["around"] = dataclasses.replace(rest["around"], extent=extent)
        made.append(World(truth=truth, states=jnp.asarray(states[k]), operator=operator, **rest))
    return made


def _draw(family: Family, members: tuple[int, int], rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Draw a true model, and all else of a world that needs no free run."""
    truth = family.draw(rng)
    model = wrong(truth, float(rng.uniform(0.03, 0.1)), rng) if rng.uniform() < WRONG else truth
    indices, density, at_once = _draw_network(family.places.kinds, rng)
    there = family.places.at(indices)
    radius = near_radius(family.places, there, at_once)
    missing = SIZE - len(indices)
    error = float(log_uniform(rng, *ERROR)) * np.exp(0.4 * rng.normal(size=SIZE) * (rng.uniform() < 0.3))
    size = np.exp(rng.uniform(np.log(members[0]), np.log(members[1] + 0.99)))
    return truth, {
        "model": model,
        "indices": jnp.asarray(np.pad(indices, (0, missing))),
        "bend": jnp.asarray(rng.choice(3, p=[0.8, 0.1, 0.1])),
        "std": jnp.asarray(error, float),
        "exists": jnp.arange(SIZE) < len(indices),
        "density": jnp.asarray(density, float),
        "around": _around(family.places, there, radius, missing),
        "members": jnp.asarray(int(size)),
    }


def _draw_network(
    kinds: Int[np.ndarray, "n"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, "m"], float, int | None]:
    """Draw the observed variables, the share of them that there is in a window, and their number at once if it varies.

    Where there are variables of several kinds, often those of one kind alone are observed.
    """
    alone = rng.uniform() < ONE_KIND
    every = np.flatnonzero(kinds == rng.integers(kinds.max() + 1)) if alone else np.arange(SIZE)
    size = len(every)
    count = min(max(2, round(float(log_uniform(rng, *DENSITY)) * size)), size)
    network = rng.choice(["regular", "random", "moving"], p=[0.45, 0.35, 0.2])
    if network == "moving":
        return every, count / size, count
    regular = every[(np.arange(count) * size // count + rng.integers(size)) % size]
    chosen = np.sort(regular if network == "regular" else rng.choice(every, count, replace=False))
    return chosen, 1.0 if rng.uniform() < 0.7 else float(rng.uniform(0.6, 0.95)), None


def _around(here: Places, there: Places, radius: float, missing: int) -> Surroundings:
    """Return what is near each variable, padded to one shape and without shared patterns."""
    found = Stencil.within(radius, here, there)
    count = found.indices.shape[1]
    offset, present, theirs = (
        np.asarray(x)[np.asarray(found.pattern)] for x in (found.offset, found.present, found.there)
    )

    def padded(x: np.ndarray) -> Array:
        width = [(0, 0), (0, max(0, NEAR - count)), *[(0, DIMENSIONS - size) for size in x.shape[2:]]]
        return jnp.asarray(np.pad(x[:, :NEAR], width))

    arrays = padded(np.asarray(found.indices)), jnp.arange(len(offset)), padded(offset), padded(present)
    near = Stencil(*arrays, jnp.asarray(here.kinds), padded(theirs))
    observations = jnp.asarray(np.pad(there.kinds, (0, missing)))
    return Surroundings(near, jnp.asarray(here.kinds), observations, (KINDS, KINDS))


def stacked(many: Sequence[Any]) -> Any:
    """Stack the arrays of some modules along a first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)


@eqx.filter_jit
def _free_runs(models: Any, starts: Float[Array, "w r n"], spin: int, key: PRNGKeyArray) -> Float[Array, "w s n"]:
    def one(model: Any, begin: Float[Array, "r n"], key: PRNGKeyArray) -> Float[Array, "s n"]:
        def step(z: Float[Array, "r n"], k: PRNGKeyArray) -> tuple[Array, None]:
            return forecast(model, z, key=k), None

        def kept(z: Float[Array, "r n"], k: PRNGKeyArray) -> tuple[Array, Array]:
            z = forecast(model, z, key=k)
            return z, z

        first, last = jax.random.split(key)
        settled = jax.lax.scan(step, begin, jax.random.split(first, spin))[0]
        return jax.lax.scan(kept, settled, jax.random.split(last, KEPT))[1].reshape(-1, begin.shape[1])

    return jax.vmap(one)(models, starts, jax.random.split(key, len(starts)))
