"""Analyses in other coordinates: what is positive stays positive, and a share stays between 0 and 1."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bieqno.assimilation.densities import AbstractDensity
from bieqno.assimilation.laws import AbstractLaw, Predicted
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter, refuse_memory

Map = Callable[[Float[Array, "n"]], Float[Array, "n"]]
TINY = 1e-30  # what counts as zero, where a logarithm is taken: far below any quantity in any units
EDGE = 1e-6  # least share, and distance of the largest from one
PAIRS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "same": (lambda x: x, lambda x: x),
    "log": (lambda x: jnp.log(jnp.maximum(x, TINY)), jnp.exp),
    "log1p": (lambda x: jnp.log1p(jnp.maximum(x, 0)), lambda x: jnp.maximum(jnp.expm1(x), 0)),
    "sqrt": (lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0), lambda x: jnp.maximum(x, 0) ** 2),
    "logit": (lambda x: _logit(jnp.clip(x, EDGE, 1 - EDGE)), jax.nn.sigmoid),
    "softplus": (lambda x: _inverse_softplus(jnp.maximum(x, EDGE)), jax.nn.softplus),
}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


def _logit(x: Array) -> Array:
    return jnp.log(x) - jnp.log1p(-x)


def _inverse_softplus(x: Array) -> Array:
    return x + jnp.log(-jnp.expm1(-x))


class Coordinates(eqx.Module):
    """Transforms each variable by its own name, of "same", "log", "log1p", "sqrt", "logit" and "softplus", or back.

    Example:
        >>> to = Coordinates(("log", "same"))
        >>> state = jnp.array([2.0, -1.0])
        >>> Coordinates(("log", "same"), back=True)(to(state)).round(4).tolist()
        [2.0, -1.0]
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    back: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        unknown = sorted(set(self.names) - PAIRS.keys())
        if unknown:
            raise ValueError(f"coordinates are some of {', '.join(PAIRS)}; got {', '.join(unknown)}")

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Transform a state."""
        if state.shape != (len(self.names),):
            raise ValueError(f"coordinates name {len(self.names)} variables, the state has shape {state.shape}")
        return jnp.stack([PAIRS[name][self.back](x) for name, x in zip(self.names, state, strict=True)])


class Transformed(eqx.Module):
    """Run another filter in other coordinates of the state, and where `seen` names them also of the observed values.

    `to` takes a state to the coordinates and `back` from them; `Transformed.by` names them for each variable. Of a transformed
    value (square roots of counts have errors of nearly the same size) the filter sees mean and variance, by quadrature over a
    normal (of logarithms, a log-normal) distribution with those of the law: an approximation, so that the particle filter does
    not take it.

    What is not positive has no logarithm: where "log" is named for it, such a window has no analysis but NaN, and the run has
    diverged. Of the others "log1p" and "sqrt" take zeros, and count what is negative as zero.

    Example:
        >>> from bieqno.assimilation import ETKF, Observation
        >>> prior = jnp.array([[0.5], [1.0], [2.0]])
        >>> observed = Observation([0], 0.1).window(jnp.array([-5.0]))
        >>> posterior = Transformed.by(ETKF(), ["log"])(prior, observed, key=jax.random.key(0))
        >>> bool(jnp.all(posterior > 0))
        True
    """

    filter: Filter
    to: Map
    back: Map
    seen: str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        refuse_memory(self.filter, "Transformed")
        Coordinates(() if self.seen is None else (self.seen,))

    @classmethod
    def by(cls, filter: Filter, names: Sequence[str], seen: str | None = None) -> "Transformed":
        """Return the filter in coordinates that are named for each variable, and for the observed values."""
        return cls(filter, Coordinates(tuple(names)), Coordinates(tuple(names), back=True), seen)

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse in the coordinates; a filter that runs the model itself has no start there and refuses."""
        inner = dataclasses.replace(observed, operator=_After(observed.operator, self.back), start=None)
        if self.seen is not None:
            to, law = PAIRS[self.seen][0], SeenLaw(observed.error, self.seen)
            value, reference = (jnp.where(observed.mask, to(x), 0) for x in (observed.value, observed.reference))
            inner = dataclasses.replace(inner, value=value, reference=reference, error=law, perturbed=None)
        posterior = self.filter(jax.vmap(self.to)(ensemble), inner, key=key)
        after = jnp.where(self._has_logarithms(ensemble, observed), jax.vmap(self.back)(posterior), jnp.nan)
        return observed.or_prior(after, ensemble)

    def _has_logarithms(self, ensemble: Float[Array, "N n"], observed: Observed) -> Bool[Array, ""]:
        """Return whether all is positive of which the logarithm is taken."""
        logs = [k for k, name in enumerate(getattr(self.to, "names", ())) if name == "log"]
        values = jnp.where(observed.mask, observed.value, 1) if self.seen == "log" else jnp.ones(1)
        return jnp.all(ensemble[:, np.array(logs, int)] > 0) & jnp.all(values > 0)


class _After(eqx.Module):
    """Observes what a transform makes of a state."""

    operator: Callable[[Float[Array, "n"]], Float[Array, "m"]]
    back: Map

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "m"]:
        return self.operator(self.back(state))


class SeenLaw(AbstractDensity):
    """The law of transformed values, of which only mean and variance are known."""

    law: AbstractLaw
    seen: str = eqx.field(static=True)

    def moments(self, predicted: Predicted) -> tuple[Predicted, Predicted]:
        """Return the moments, by quadrature; of logarithms those of a log-normal distribution."""
        mean, variance = self.law.moments(predicted)
        if self.seen == "log":  # as of a log-normal: a normal distribution has values that have no logarithm
            safe = jnp.maximum(mean, TINY)
            spread = jnp.log1p(variance / safe**2)
            return jnp.log(safe) - spread / 2, spread
        nodes = jnp.asarray(NODES, mean.dtype)[:, None, None]
        weights = jnp.asarray(WEIGHTS / WEIGHTS.sum(), mean.dtype)[:, None, None]
        values = PAIRS[self.seen][0](mean + nodes * jnp.sqrt(variance))
        centre = jnp.sum(weights * values, axis=0)
        return centre, jnp.sum(weights * (values - centre) ** 2, axis=0)

    def mean(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the mean."""
        return self.moments(predicted.reshape(-1, 1))[0].reshape(predicted.shape)

    def variance(self, predicted: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the variance."""
        return self.moments(predicted.reshape(-1, 1))[1].reshape(predicted.shape)

    def _no_density(self) -> NoReturn:
        raise TypeError(
            "of transformed values only mean and variance are known: a filter that weighs by the law itself, such as the "
            "particle filter, takes the values as they are (seen=None)"
        )

    def log_prob(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Refuse."""
        self._no_density()

    def sample(self, predicted: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
        """Refuse."""
        self._no_density()

    def cdf(self, value: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "..."]:
        """Refuse."""
        self._no_density()
