"""One learned filter for many records: trained on scenarios, kept with a study, and run on a record like any other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import OnScenarios, RecordEnNF, Scenarios, simulate, train_filter
from bieqno.lab.study import Run

LEAST = 0.05  # spread that analyses are scored in units of, as a share of how much a coordinate varies
EVERY = 10  # windows between two states of the sample for the units


@eqx.filter_jit
def free_runs(known: Scenarios, *, key: PRNGKeyArray) -> Float[Array, "K T n"]:
    """Return a truth of each scenario."""

    def one(drawn: tuple[Array, PRNGKeyArray]) -> Float[Array, "T n"]:
        system, inputs, states = known.at(drawn[0])
        return simulate(system, known.windows, state=states[0], inputs=inputs, key=drawn[1]).truth

    return jax.lax.map(one, (jnp.arange(known.count), jax.random.split(key, known.count)))


def untrained(known: Scenarios, names: Sequence[str], seen: str, *, key: PRNGKeyArray) -> RecordEnNF:
    """Return a filter that is its base, in the units of truths of some scenarios."""
    run_key, net_key = jax.random.split(key)
    truths = free_runs(known, key=run_key)[:, ::EVERY]
    bare = RecordEnNF(names, seen, truths.reshape(-1, truths.shape[-1]), key=net_key)
    climate = jnp.mean(jnp.std(jax.vmap(jax.vmap(bare.to))(truths), axis=1), axis=0)
    contexts = known.inputs["context"]
    about: Any = {"contexts": contexts.reshape(-1, contexts.shape[-1]), "climate": climate, "key": net_key}
    return RecordEnNF(names, seen, truths.reshape(-1, truths.shape[-1]), **about)


def kept_or_trained(
    run: Run, known: Callable[[], Scenarios], names: Sequence[str], seen: str, sizes: Mapping[int, int], steps: int
) -> RecordEnNF:
    """Return the filter of a study, trained on scenarios alone, or as kept by a run that was stopped."""
    drawn = known()
    student = untrained(drawn, names, seen, key=jax.random.key(run.seed))
    leaves, structure = jax.tree.flatten(eqx.filter(student, eqx.is_array))

    def compute() -> dict[str, np.ndarray]:
        objective = OnScenarios(drawn, sizes, coordinates=student.to, floor=LEAST * student.climate)
        how: Any = {"steps": steps, "validate": None, "on_progress": run.training("EnNF")}
        found = train_filter(student, drawn.at(0)[0], objective, **how, key=jax.random.key(run.seed + 1)).module
        return {str(n): np.asarray(x) for n, x in enumerate(jax.tree.leaves(eqx.filter(found, eqx.is_array)))}

    kept = run.cases.take("EnNF", compute)
    arrays = jax.tree.unflatten(structure, [jnp.asarray(kept[str(n)]) for n in range(len(leaves))])
    return eqx.combine(arrays, student)
