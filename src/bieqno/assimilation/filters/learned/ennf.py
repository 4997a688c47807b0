"""The ensemble neural filter (eq. 13 and appendix B of the paper): an analysis that is learned.

``z_a[i,j] = phi_fit(phi_self(z_f[i,j], H(z_f[i]), d[i]) (+) mean_i phi_int(z_f[i,j], H(z_f[i]), d[i]))`` for every state
variable j: one `EquivariantOperator` over the members, shared by all variables.
"""

import abc
from typing import TypeVar, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.observation import Observed
from bieqno.operators import EquivariantOperator, Standardiser, frozen
from bieqno.operators.networks import NetworkSettings


class Scaling(eqx.Module):
    """Means and scales: one for all state variables, which share one operator, and one per observed value.

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


Student = TypeVar("Student", bound="AbstractStudent")


class AbstractStudent(eqx.Module):
    """One operator over the members that takes a fixed number of observed values, and may have several teachers.

    It imitates the `teacher` that is set, whose code goes to the fitting net; None if there are no `teachers`.
    """

    teacher: eqx.AbstractVar[Int[Array, ""] | None]
    observations: eqx.AbstractVar[int]
    teachers: eqx.AbstractVar[int]

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Lengths of the operator's elements, results and context."""

    def check(self, operator: EquivariantOperator) -> None:
        """Refuse an operator or a code of the teacher that does not fit."""
        sizes = (operator.in_size, operator.out_size, operator.context_size)
        if sizes != self.sizes:
            raise ValueError(f"{self.observations} observed values need an operator of sizes {self.sizes}, got {sizes}")
        if (self.teacher is None) == (self.teachers > 0):
            raise ValueError("a code of the teacher is given if there are teachers, and only then")
        if self.teacher is not None and (self.teacher.shape or not jnp.issubdtype(self.teacher.dtype, jnp.integer)):
            raise ValueError(
                f"the code of the teacher is one whole number, got {self.teacher.dtype}{self.teacher.shape}"
            )

    def acting_as(self: Student, teacher: int | Int[Array, ""]) -> Student:
        """Return the same filter in the role of one of its teachers, counted from 0."""
        if not self.teachers or (isinstance(teacher, int) and not 0 <= teacher < self.teachers):
            raise ValueError(f"this filter has {self.teachers} teachers, counted from 0; got {teacher}")
        return eqx.tree_at(lambda f: f.teacher, self, jnp.asarray(teacher))

    def code(self, observed: Observed) -> list[Float[Array, "t"]]:
        """Return the code of the teacher, if there is one; a ValueError if the observed values are not those expected."""
        if observed.value.shape != (self.observations,):
            raise ValueError(f"this filter takes {self.observations} observed values, got {observed.value.shape[0]}")
        return [] if self.teacher is None else [jax.nn.one_hot(self.teacher, self.teachers)]


class EnNF(AbstractStudent):
    """Moves each variable of each member by one learned operator, given what is known in observation space.

    Takes ensembles of any size and states of any number of variables; only the number of observed values is fixed.
    Perturbs observations as the EnKF does. Standardisation belongs to it (`Scaling`). A missing value is taken to be what
    each member predicts; with none at all the prior is returned as it is. Without increments, anomalies and innovations it
    is exactly the paper's equation.

    Args:
        increment: the operator gives what is added to the prior, instead of the posterior itself.
        anomalies: the distances of ``z_ij`` and ``H(z_i)`` from their ensemble means are given beside them, which spares
            the networks small differences of large numbers.
        innovation: ``d_i`` goes in as ``d_i - H(z_i)``, for the same reason.
        error_input: the errors' standard deviations are given to the fitting net.
        teachers: number of filters to imitate, each with a code given to the fitting net; 0 for no code.

    Example:
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
    innovation: bool = eqx.field(static=True, default=True)

    @checked()
    def __init__(
        self,
        observations: int,
        *,
        width: int = 64,
        depth: int = 3,
        increment: bool = True,
        anomalies: bool = True,
        innovation: bool = True,
        error_input: bool = False,
        teachers: int = 0,
        key: PRNGKeyArray,
        **network: Unpack[NetworkSettings],
    ) -> None:
        self.scaling = Scaling.unit(observations)
        self.weights = None
        self.teacher = jnp.array(0) if teachers else None
        self.observations, self.teachers = observations, teachers
        self.increment, self.anomalies, self.error_input = increment, anomalies, error_input
        self.innovation = innovation
        size, results, context = self.sizes
        self.operator = EquivariantOperator(
            size, results, context_size=context, width=width, depth=depth, key=key, **network
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Lengths of the operator's elements, results and context."""
        m = self.observations
        return 1 + 2 * m + (1 + m) * self.anomalies, 1, m * self.error_input + self.teachers

    def __check_init__(self) -> None:
        self.check(self.operator)
        m = self.observations
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.scaling)]
        if shapes != [()] * 6 + [(m,)] * 6:
            raise ValueError(f"expected standardisers of states () and observations ({m},), got {shapes}")
        if self.weights is not None:
            shared = [leaf.shape for leaf in jax.tree.leaves(eqx.filter(self.operator, eqx.is_array))]
            own = [leaf.shape[1:] for leaf in self.weights]
            if own != shared or len({leaf.shape[0] for leaf in self.weights}) != 1:
                raise ValueError(f"stacked weights need the shapes {shared} for each variable, got {own}")

    @property
    def is_stacked(self) -> bool:
        """Whether every state variable has weights of its own; the shared ones are then not trained."""
        return self.weights is not None

    def standardised(self, *sample: Float[Array, "k N _"]) -> "EnNF":
        """Return the same filter, standardised to a sample of analyses, as `Scaling.of` takes it."""
        return eqx.tree_at(lambda f: f.scaling, self, Scaling.of(*sample))

    def stacked(self, variables: int) -> "EnNF":
        """Return the same filter with a copy of the weights for each state variable, to be fine-tuned apart."""
        leaves = jax.tree.leaves(eqx.filter(self.operator, eqx.is_array))
        copies = tuple(jnp.tile(leaf, (variables, *[1] * leaf.ndim)) for leaf in leaves)
        return eqx.tree_at(lambda f: f.weights, self, copies, is_leaf=lambda x: x is None)

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        # What all members and variables share: the size of the errors, the code of the teacher.
        observed, code = observed.gaussian(ensemble), self.code(observed)
        shared = [observed.std / self.scaling.innovation.scale, *code] if self.error_input else code
        context = jnp.concatenate(shared) if shared else None
        predicted = observed.predict(ensemble)
        perturbed = jnp.where(observed.mask, observed.perturb(ensemble.shape[0], key=key), predicted)
        if self.weights is not None and self.weights[0].shape[0] != ensemble.shape[1]:
            raise ValueError(
                f"this filter has weights for {self.weights[0].shape[0]} variables, the state has {ensemble.shape[1]}"
            )
        # Inputs of each variable, and of all variables of a member, whose layers are then computed once, not for each j.
        scaling = self.scaling
        own = [scaling.state(ensemble)]
        of_observations = scaling.innovation(perturbed - predicted) if self.innovation else scaling.predicted(perturbed)
        common = [scaling.predicted(predicted), of_observations]
        if self.anomalies:
            own.append(scaling.anomaly(ensemble - jnp.mean(ensemble, axis=0)))
            common.append(scaling.predicted_anomaly(predicted - jnp.mean(predicted, axis=0)))
        z, seen = jnp.stack(own, axis=-1), jnp.concatenate(common, axis=1)
        arrays, rest = eqx.partition(self.operator, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)

        def analyse(leaves: tuple[Array, ...], column: Float[Array, "N p"]) -> Float[Array, "N"]:
            operator = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
            return operator((column, seen), context=context)[:, 0]

        weights, axis = (tuple(leaves), None) if self.weights is None else (self.weights, 0)
        moved = jax.vmap(analyse, (axis, 1), 1)(weights, z)
        posterior = ensemble + scaling.increment.undo(moved) if self.increment else scaling.state.undo(moved)
        return observed.or_prior(posterior, ensemble)
