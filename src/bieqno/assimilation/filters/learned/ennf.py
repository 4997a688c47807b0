"""The ensemble neural filter (eq. 13 and appendix B of the paper): an analysis that is learned.

``z_a[i,j] = phi_fit(phi_self(z_f[i,j], H(z_f[i]), d[i]) (+) mean_i phi_int(z_f[i,j], H(z_f[i]), d[i]))`` for every state
variable j: one `EquivariantOperator` over the members, shared by all variables.
"""

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.assimilation.observation import Observed
from bieqno.operators import EquivariantOperator, Standardiser, frozen
from bieqno.operators.networks import NetworkSettings


class Scaling(eqx.Module):
    """Means and scales; no variable of the state has one of its own, since all share one operator.

    Args:
        state: of state variables, one for all.
        anomaly: of their distances from the ensemble mean, one for all.
        increment: of what an analysis adds to them, one for all.
        predicted: of predicted observations, one per value.
        predicted_anomaly: of their distances from the ensemble mean, one per value.
        innovation: of the difference between observations and predictions, one per value.

    Example:
        >>> Scaling.unit(2).predicted.scale.tolist()
        [1.0, 1.0]
    """

    state: Standardiser
    anomaly: Standardiser
    increment: Standardiser
    predicted: Standardiser
    predicted_anomaly: Standardiser
    innovation: Standardiser

    @classmethod
    def unit(cls, observations: int) -> "Scaling":
        """Return the one that changes nothing."""
        return cls(*[Standardiser.unit()] * 3, *[Standardiser.unit(observations)] * 3)

    @classmethod
    def of(
        cls,
        prior: Float[Array, "k N n"],
        posterior: Float[Array, "k N n"],
        predicted: Float[Array, "k N m"],
        perturbed: Float[Array, "k N m"],
    ) -> "Scaling":
        """Return the one that standardises a sample of analyses."""

        def deviations(series: Float[Array, "k N _"]) -> Float[Array, "k N _"]:
            return series - jnp.mean(series, axis=1, keepdims=True)

        return cls(
            Standardiser.of(prior),
            Standardiser.of(deviations(prior)),
            Standardiser.of(posterior - prior),
            Standardiser.of(predicted, axis=(0, 1)),
            Standardiser.of(deviations(predicted), axis=(0, 1)),
            Standardiser.of(perturbed - predicted, axis=(0, 1)),
        )


class EnNF(eqx.Module):
    """Moves each variable of each member by one learned operator, given what is known in observation space.

    Takes ensembles of any size and states of any number of variables; only the number of observed values is fixed.
    Perturbs observations as the EnKF does. Standardisation belongs to it (`Scaling`), and so does the choice of
    coordinates: ``d_i`` goes in as the innovation ``d_i - H(z_i)``. A missing value is taken to be what each member
    predicts; with none at all the prior is returned as it is.

    Args:
        observations: number m of observed values.
        width: length of embeddings and hidden layers.
        depth: number of layers of each of the three networks.
        increment: the operator gives what is added to the prior, instead of the posterior itself.
        anomalies: the distances of ``z_ij`` and ``H(z_i)`` from their ensemble means are given beside them, which spares
            the networks small differences of large numbers; without them it is the paper's equation to the letter.
        error_input: the errors' standard deviations are given to the fitting net.
        teachers: number of filters it is to imitate, told apart by a code given to the fitting net; 0 for no code.
        key: random key of the initial weights.
        **network: `activation` and `residual` of the networks.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bieqno.assimilation import Observation
        >>> filter = EnNF(1, key=jax.random.key(0))
        >>> observed = Observation([0], 1.0).window(jnp.array([2.0]))
        >>> filter(jnp.ones((5, 3)), observed, key=jax.random.key(1)).shape
        (5, 3)
    """

    scaling: Scaling
    weights: tuple[Array, ...] | None
    teacher: Int[Array, ""] | None
    observations: int = eqx.field(static=True)
    teachers: int = eqx.field(static=True)
    increment: bool = eqx.field(static=True)
    anomalies: bool = eqx.field(static=True)
    error_input: bool = eqx.field(static=True)
    operator: EquivariantOperator = frozen(when="is_stacked")

    def __init__(
        self,
        observations: int,
        *,
        width: int = 64,
        depth: int = 3,
        increment: bool = True,
        anomalies: bool = True,
        error_input: bool = False,
        teachers: int = 0,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        self.operator = EquivariantOperator(
            1 + 2 * observations + (1 + observations) * anomalies,
            1,
            context_size=observations * error_input + teachers,
            width=width,
            depth=depth,
            key=key,
            **network,
        )
        self.scaling = Scaling.unit(observations)
        self.weights = None
        self.teacher = jnp.array(0) if teachers else None
        self.observations = observations
        self.teachers = teachers
        self.increment = increment
        self.anomalies = anomalies
        self.error_input = error_input

    def __check_init__(self) -> None:
        m = self.observations
        sizes = (self.operator.in_size, self.operator.context_size, self.operator.out_size)
        expected = (1 + 2 * m + (1 + m) * self.anomalies, m * self.error_input + self.teachers, 1)
        if sizes != expected:
            raise ValueError(f"{m} observed values need an operator of sizes {expected}, got {sizes}")
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.scaling)]
        if shapes != [()] * 6 + [(m,)] * 6:
            raise ValueError(f"expected standardisers of states () and observations ({m},), got {shapes}")
        if (self.teacher is None) == (self.teachers > 0):
            raise ValueError("a code of the teacher is given if there are teachers, and only then")
        if self.teacher is not None and (self.teacher.shape or not jnp.issubdtype(self.teacher.dtype, jnp.integer)):
            raise ValueError(
                f"the code of the teacher is one whole number, got {self.teacher.dtype}{self.teacher.shape}"
            )
        if self.weights is not None:
            shared = [leaf.shape for leaf in jax.tree.leaves(eqx.filter(self.operator, eqx.is_array))]
            own = [leaf.shape[1:] for leaf in self.weights]
            if own != shared or len({leaf.shape[0] for leaf in self.weights}) != 1:
                raise ValueError(f"stacked weights need the shapes {shared} for each variable, got {own}")

    @property
    def is_stacked(self) -> bool:
        """Whether every state variable has weights of its own; the shared ones are then not trained."""
        return self.weights is not None

    def standardised(
        self,
        prior: Float[Array, "k N n"],
        posterior: Float[Array, "k N n"],
        predicted: Float[Array, "k N m"],
        perturbed: Float[Array, "k N m"],
    ) -> "EnNF":
        """Return the same filter, standardised to a sample of analyses."""
        return eqx.tree_at(lambda f: f.scaling, self, Scaling.of(prior, posterior, predicted, perturbed))

    def stacked(self, variables: int) -> "EnNF":
        """Return the same filter with a copy of the weights for each state variable, to be fine-tuned apart."""
        leaves = jax.tree.leaves(eqx.filter(self.operator, eqx.is_array))
        copies = tuple(jnp.tile(leaf, (variables, *[1] * leaf.ndim)) for leaf in leaves)
        return eqx.tree_at(lambda f: f.weights, self, copies, is_leaf=lambda x: x is None)

    def acting_as(self, teacher: int | Int[Array, ""]) -> "EnNF":
        """Return the same filter in the role of one of its teachers, counted from 0."""
        if not self.teachers or (isinstance(teacher, int) and not 0 <= teacher < self.teachers):
            raise ValueError(f"this filter has {self.teachers} teachers, counted from 0; got {teacher}")
        return eqx.tree_at(lambda f: f.teacher, self, jnp.asarray(teacher))

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        if observed.value.shape != (self.observations,):
            raise ValueError(f"this filter takes {self.observations} observed values, got {observed.value.shape[0]}")
        predicted = observed.predict(ensemble)
        perturbed = jnp.where(observed.mask, observed.perturb(ensemble.shape[0], key=key), predicted)
        if self.weights is not None and self.weights[0].shape[0] != ensemble.shape[1]:
            raise ValueError(
                f"this filter has weights for {self.weights[0].shape[0]} variables, the state has {ensemble.shape[1]}"
            )
        z, seen = self._elements(ensemble, predicted, perturbed)
        context = self._context(observed)
        shared, rest = eqx.partition(self.operator, eqx.is_array)
        leaves, structure = jax.tree.flatten(shared)

        def analyse(leaves: tuple[Array, ...], column: Float[Array, "N p"]) -> Float[Array, "N"]:
            operator = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
            return operator((column, seen), context=context)[:, 0]

        if self.weights is None:
            moved = jax.vmap(analyse, (None, 1), 1)(tuple(leaves), z)
        else:
            moved = jax.vmap(analyse, (0, 1), 1)(self.weights, z)
        scaling = self.scaling
        posterior = ensemble + scaling.increment.undo(moved) if self.increment else scaling.state.undo(moved)
        return observed.or_prior(posterior, ensemble)

    def _elements(
        self, ensemble: Float[Array, "N n"], predicted: Float[Array, "N m"], perturbed: Float[Array, "N m"]
    ) -> tuple[Float[Array, "N n p"], Float[Array, "N q"]]:
        """Standardised inputs: what belongs to each variable, and what all variables of a member share.

        They are kept apart, so that the layers over the latter are computed once, not for each j.
        """
        own = [self.scaling.state(ensemble)]
        common = [self.scaling.predicted(predicted), self.scaling.innovation(perturbed - predicted)]
        if self.anomalies:
            own.append(self.scaling.anomaly(ensemble - jnp.mean(ensemble, axis=0)))
            common.append(self.scaling.predicted_anomaly(predicted - jnp.mean(predicted, axis=0)))
        return jnp.stack(own, axis=-1), jnp.concatenate(common, axis=1)

    def _context(self, observed: Observed) -> Float[Array, "c"] | None:
        """What all members and variables share: the size of the errors, the code of the teacher."""
        parts = []
        if self.error_input:
            parts.append(observed.std / self.scaling.innovation.scale)
        if self.teacher is not None:
            parts.append(jax.nn.one_hot(self.teacher, self.teachers))
        return jnp.concatenate(parts) if parts else None
