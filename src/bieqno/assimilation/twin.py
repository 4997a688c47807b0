"""Twin experiments: `simulate` a truth and its observations, `cycle` a filter through them; and what is kept of each window."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from bieqno import distributed
from bieqno.arguments import checked
from bieqno.assimilation.conditions import warn_where_unlike
from bieqno.assimilation.division import Divided, divide
from bieqno.assimilation.filters.transformed import Transformed
from bieqno.assimilation.models.forecast import fewest_survivors, forecast, redrawn
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter, analysed, begin
from bieqno.assimilation.system import System

Ensemble: TypeAlias = Float[Array, "N n"]
REDRAW = 0x5EED0001  # folded into a key; a small number would give a key that a model's own `split` gives, too


class Observations(eqx.Module):
    """A series of observations, one row per window; the filter evaluates the error law at the reference."""

    value: Float[Array, "T m"]
    mask: Bool[Array, "T m"]
    reference: Float[Array, "T m"]

    def __check_init__(self) -> None:
        shapes = self.value.shape, self.mask.shape, self.reference.shape
        if len(set(shapes)) > 1:
            raise ValueError(f"values, mask and reference have one shape, got {shapes[0]}, {shapes[1]} and {shapes[2]}")

    @classmethod
    @checked("value")
    def of(cls, value: Float[Array, "T m"]) -> "Observations":
        """Return measured values, NaN where one is missing; the error law is evaluated at what was measured."""
        mask = jnp.isfinite(value)
        value = jnp.where(mask, value, 0)
        return cls(value, mask, value)

    def spread(self, mesh: Mesh) -> "Observations":
        """Return the same on a mesh: values in their order over its devices where these divide them, or a copy for each."""
        return distributed.spread(self, mesh, None, distributed.dividing(self.value.shape[1], mesh))

    def rebuilt(self) -> "Observations":
        """Return the same, for a filter that rebuilds R from the observed value instead of knowing the truth's."""
        return Observations(self.value, self.mask, jnp.where(self.mask, self.value, 0))


class Twin(eqx.Module):
    """A simulated truth and its observations."""

    truth: Float[Array, "T n"]
    observations: Observations


class Run(eqx.Module):
    """The result of a filter on a series of observations.

    What is kept from a divergence on repeats the last sound ensemble, and is no result.
    """

    kept: PyTree[Any]  # what the record kept of each window, stacked along a first axis
    ensemble: Float[Array, "N n"]  # the last one, to continue from
    diverged: Int[Array, ""]  # the first window in which the filter diverged, counted from 0; -1 if it never did
    # Members of each window whose forecast failed; they were redrawn, unless too many did: then the run ended there.
    lost: Int[Array, "T"]
    state: PyTree[Any] = None  # of the filter after the last window, where it has one

    @property
    def log_score(self) -> Float[Array, "..."]:
        """Sum of the log scores of all windows, which estimates the log-likelihood; needs the record `keep_scores`."""
        if not isinstance(self.kept, dict) or "log_score" not in self.kept:
            raise ValueError("a log score needs a record that keeps it: cycle(..., record=keep_scores)")
        return jnp.where(self.diverged < 0, jnp.sum(self.kept["log_score"], axis=-1), -jnp.inf)


@runtime_checkable
class Record(Protocol):
    """Decides what is kept of a window; `key` is the one the filter was called with."""

    def __call__(self, prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> PyTree[Any]:
        """Return any PyTree of arrays."""


def keep_moments(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Keep mean and standard deviation of both ensembles: memory that does not grow with N."""
    scale = jnp.sqrt(prior.shape[0] / max(prior.shape[0] - 1, 1)).astype(prior.dtype)
    return {
        "prior_mean": jnp.mean(prior, axis=0),
        "prior_spread": jnp.std(prior, axis=0) * scale,
        "mean": jnp.mean(posterior, axis=0),
        "spread": jnp.std(posterior, axis=0) * scale,
    }


def keep_mean(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "n"]:
    """Keep the mean of the analysis, and no more."""
    return jnp.mean(posterior, axis=0)


def keep_ensembles(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Keep both ensembles, for `to_dataset`, rank histograms and figures."""
    return {"prior": prior, "posterior": posterior}


def keep_triples(prior: Ensemble, posterior: Ensemble, observed: Observed, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Keep what a learned filter imitates; perturbed observations are those that the filter drew, or would have drawn."""
    observed = observed.gaussian(prior)
    return {
        "observed": observed.value,
        "std": observed.std,
        "mask": observed.mask,
        "prior": prior,
        "predicted": observed.predict(prior),
        "perturbed": observed.perturb(prior.shape[0], key=key),
        "posterior": posterior,
    }


@checked(finite=False)
@eqx.filter_jit
def simulate(
    system: System,
    windows: int,
    *,
    state: Float[Array, "n"] | None = None,
    mask: Bool[Array, "T m"] | None = None,
    inputs: PyTree[Any] = None,
    key: PRNGKeyArray,
) -> Twin:
    """Run a truth and observe it at the end of every window.

    It begins at `state`, by default the system's; see `spin_up` for one on the attractor. The mask says which values there
    are, by default as the system's network has it; `inputs` what drives the model, as in `cycle`.

    Example:
        >>> from bieqno.assimilation import Observation
        >>> doubling = System(lambda z: 2 * z, Observation([0], 0.1), jnp.ones(2))
        >>> simulate(doubling, 3, key=jax.random.key(0)).truth[:, 0].tolist()
        [2.0, 4.0, 8.0]
    """
    truth, error_key = _truth(system, windows, state, inputs, key)
    observation = system.observation
    clean = jax.vmap(observation.operator)(truth)
    drawn = observation.error.draw(clean, key=error_key)
    present = system.present(windows, key=jax.random.fold_in(error_key, 1)) if mask is None else mask
    if present.shape != clean.shape:
        raise ValueError(f"the mask has shape {present.shape}, the observations {clean.shape}")
    value = jnp.where(present, drawn, 0)
    return Twin(truth, Observations(value, present, jnp.where(present, clean, 0)))


@checked(finite=False)
@eqx.filter_jit
def spin_up(
    system: System,
    windows: int,
    *,
    state: Float[Array, "n"] | None = None,
    inputs: PyTree[Any] = None,
    key: PRNGKeyArray,
) -> Float[Array, "T n"]:
    """Return the states of a free run, one per window: without the first of them, a sample of the climatology."""
    return _truth(system, windows, state, inputs, key)[0]


def _truth(
    system: System, windows: int, state: Float[Array, "n"] | None, inputs: PyTree[Any], key: PRNGKeyArray
) -> tuple[Float[Array, "T n"], PRNGKeyArray]:
    """Run the model once; return the states, and the key that is left for observation errors."""
    begin = system.state if state is None else jnp.asarray(state, jnp.result_type(state, float))
    if windows < 0 or begin.shape != system.state.shape:
        raise ValueError(
            f"expected a state {system.state.shape} and windows to run, got shape {begin.shape} and {windows} windows"
        )
    check_inputs(inputs, windows)
    model_key, error_key = jax.random.split(key)

    def advance(z: Float[Array, "n"], window: tuple[PRNGKeyArray, PyTree[Any]]) -> tuple[Array, Array]:
        z = forecast(system.model, z[None], window[1], key=window[0])[0]
        return z, z

    return jax.lax.scan(advance, begin, (jax.random.split(model_key, windows), inputs))[1], error_key


def check_inputs(inputs: PyTree[Any], windows: int) -> None:
    """Refuse inputs that are not one row per window."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(inputs)]
    if any(shape[:1] != (windows,) for shape in shapes):
        raise ValueError(f"inputs have one row for each of {windows} windows, got shapes {shapes}")


def check_values(filter: Filter, system: System, observations: Observations) -> None:
    """Refuse observed values that cannot occur, and those that have no logarithm where the filter takes it."""
    law, values, mask = system.observation.error, observations.value, observations.mask
    leaves = jax.tree.leaves((law, values, mask))
    if any(isinstance(x, jax.core.Tracer) or not getattr(x, "is_fully_addressable", True) for x in leaves):
        return  # not known here
    with jax.ensure_compile_time_eval():  # also where a run is part of a compiled program
        wrong = {f"cannot occur under {type(law).__name__}": np.asarray(law.impossible(values))}
    parts = jax.tree.leaves(filter, is_leaf=lambda part: isinstance(part, Transformed))
    if any(isinstance(part, Transformed) and part.seen == "log" for part in parts):
        wrong["have no logarithm, which the filter takes"] = np.asarray(values) <= 0
    for why, where in wrong.items():
        windows, columns = np.nonzero(where & np.asarray(mask))
        if len(windows):
            first = f"{float(np.asarray(values)[windows[0], columns[0]]):g} in window {windows[0] + 1}"
            raise ValueError(
                f"{len(windows)} observed values {why}, such as {first}; leave them out (NaN), or take a law or coordinates "
                'that have them, such as Censored, and "log1p" or "sqrt"'
            )


@checked("ensemble", finite=False)
def cycle(
    filter: Filter,
    system: System,
    ensemble: Float[Array, "N n"],
    observations: Observations,
    *,
    inputs: PyTree[Any] = None,
    record: Record = keep_moments,
    first_window: int | Int[Array, ""] = 0,
    state: PyTree[Any] = None,
    survivors: float = 1.0,
    mesh: Mesh | None = None,
    key: PRNGKeyArray,
) -> Run:
    """Take an ensemble through a series of observations: forecast, analyse, record, and repeat.

    The only filtering loop, compiled as one program. Any function ``(ensemble, observed, *, key) -> ensemble`` is a filter,
    and `record` says what to keep of each window. Window k uses the same key whatever the filter does; where a run
    continues an earlier one, `first_window` is the number of its first, and gives it the keys of the whole run. What
    drives the model are its `inputs`: a PyTree of arrays with one row per window, a row of which is the model's second
    argument. A filter that remembers earlier windows (`StatefulFilter`) begins anew, or from the `state` of an earlier run.

    A member whose forecast is NaN has failed. Where at least a share of `survivors` is left, those that failed are redrawn
    from the others and counted; otherwise the run has diverged.

    With a `mesh` variables and observations are spread over its devices, and so are the results. All processes of the mesh
    make the same call; see `bieqno.distributed`. Along a second axis of the mesh are members in forecasts, which do not need
    each other, and further variables in analyses.

    Example:
        >>> from bieqno.assimilation import EnKF, Lorenz63, Observation
        >>> system = System(Lorenz63(), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
        >>> twin_key, start_key, run_key = jax.random.split(jax.random.key(0), 3)
        >>> twin = simulate(system, 20, key=twin_key)
        >>> start = jnp.array([-8.0, -9.0, 28.0]) + jax.random.normal(start_key, (50, 3))
        >>> run = cycle(EnKF(), system, start, twin.observations, key=run_key)
        >>> run.kept["mean"].shape, run.diverged.item()
        ((20, 3), -1)
    """
    ensemble = jnp.asarray(ensemble, jnp.result_type(ensemble, float))
    if ensemble.ndim != 2 or not ensemble.shape[0] or ensemble.shape[1] != system.size:
        raise ValueError(f"expected an ensemble (N, {system.size}) of at least one member, got shape {ensemble.shape}")
    if observations.value.shape[1] != system.observed:
        raise ValueError(f"{system.observed} values are observed, but the series has {observations.value.shape[1]}")
    check_inputs(inputs, observations.value.shape[0])
    if not 0 < survivors <= 1:
        raise ValueError(f"expected a share of survivors above 0 and at most 1, got survivors={survivors}")
    system.check_present(observations.mask)
    check_values(filter, system, observations)
    warn_where_unlike(filter, system)
    state = begin(filter) if state is None else state
    number, members = jnp.asarray(first_window), None
    if mesh is not None:
        mesh = distributed.free(mesh)
        filter = filter if isinstance(filter, Divided) else divide(filter, system.observation, system.size, mesh)
        members = _by_members(mesh, ensemble.shape[0])
        system, state, inputs, number, key = distributed.spread((system, state, inputs, number, key), mesh)
        observations = observations.spread(mesh)
        ensemble = distributed.spread(ensemble, mesh, *members.spec)
    return _cycle(filter, system, ensemble, state, observations, inputs, record, number, survivors, members, key)


def _by_members(mesh: Mesh, members: int) -> NamedSharding:
    """Return how an ensemble is spread in a forecast: variables along the first axis of a mesh, members along a second."""
    space, *second = mesh.axis_names
    if len(second) > 1 or (second and members % mesh.shape[second[0]]):
        raise ValueError(
            f"a mesh has an axis for variables, one that divides {members} members, got {dict(mesh.shape)}"
        )
    return NamedSharding(mesh, PartitionSpec(second[0] if second else None, space))


def window_keys(key: PRNGKeyArray, window: int | Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Return the keys of the forecast and of the analysis of one window of a run, counted from 0."""
    # Folding the number in, rather than splitting, keeps a window's keys whatever the length of the series.
    model_key, analysis_key = jax.random.split(jax.random.fold_in(key, window))
    return model_key, analysis_key


@eqx.filter_jit
def _cycle(
    filter: Filter,
    system: System,
    ensemble: Float[Array, "N n"],
    state: PyTree[Any],
    observations: Observations,
    inputs: PyTree[Any],
    record: Record,
    first_window: Int[Array, ""],
    survivors: float,
    members: NamedSharding | None,
    key: PRNGKeyArray,
) -> Run:
    def sound(members: Float[Array, "N n"]) -> Bool[Array, ""]:
        # A comparison with NaN is false, so this one test is also the one for finiteness.
        return jnp.all(jnp.abs(members) <= system.limit)

    def step(
        carry: tuple[Array, PyTree[Any], Array],
        window: tuple[Array, tuple[PRNGKeyArray, PRNGKeyArray], Observations, PyTree[Any]],
    ) -> tuple[tuple[Array, PyTree[Any], Array], PyTree[Any]]:
        start, state, diverged = carry
        index, (model_key, analysis_key), seen, driven = window
        if members is not None:
            start = jax.lax.with_sharding_constraint(start, members)
        prior = forecast(system.model, start, driven, key=model_key)
        lost = jnp.array(0)
        if survivors < 1:
            failed = jnp.any(jnp.isnan(prior), axis=1)
            lost = jnp.where(diverged < 0, jnp.sum(failed), 0)
            again = (lost > 0) & (jnp.sum(~failed) >= least)
            draw = jax.random.fold_in(model_key, REDRAW)
            prior = jax.lax.cond(again, lambda z: redrawn(z, failed, key=draw), lambda z: z, prior)
        going = (diverged < 0) & sound(prior)
        # A lost ensemble stands still, so that nothing downstream ever computes with what is not finite.
        prior = jnp.where(going, prior, start)
        observed = system.observation.window(
            seen.value, mask=seen.mask, reference=seen.reference, start=start, inputs=driven
        )
        posterior, following = analysed(filter, state, prior, observed, key=analysis_key)
        if posterior.shape != prior.shape:
            raise ValueError(f"a filter keeps the shape {prior.shape}, got {posterior.shape}")
        going = going & sound(posterior)
        posterior = jnp.where(going, posterior, start)
        prior = jnp.where(going, prior, start)
        state = jax.tree.map(lambda new, old: jnp.where(going, new, old), following, state)
        diverged = jnp.where((diverged < 0) & ~going, index, diverged)
        return (posterior, state, diverged), (record(prior, posterior, observed, key=analysis_key), lost)

    least = fewest_survivors(survivors, ensemble.shape[0])
    index = jnp.arange(observations.value.shape[0])
    keys = jax.vmap(lambda window: window_keys(key, window))(first_window + index)
    windows = (index, keys, observations, inputs)
    (last, state, diverged), (kept, lost) = jax.lax.scan(step, (ensemble, state, jnp.array(-1)), windows)
    return Run(kept, last, diverged, lost, state)
