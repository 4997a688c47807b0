"""A learned filter for real records: few variables, values that are counts or positive, a model that is driven and at random.

A classical analysis of few members errs by chance: its gain is a sample covariance, its spread a sample variance. Here networks
that are given what all members say together correct both, and the law by which the forecast predicts the next value. They are
trained on simulations with many parameters (`OnScenarios`), and have parameters and inputs as a context.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.filters.dressed import TransformedNormals
from bieqno.assimilation.filters.transform import ETKF
from bieqno.assimilation.filters.transformed import PAIRS, Coordinates, SeenLaw, Transformed
from bieqno.assimilation.linalg import white_noise
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.protocols import Filter
from bieqno.operators import MLP, Standardiser, frozen

NORMALS = 3  # of the predictive law
TERMS = 7  # results of the network for each variable
FARTHEST = 8.0  # innovation, in units of its deviation, beyond which it counts no more
LEAST = 1e-3  # spread of a coordinate below which members count as equal
QUIET = -5.0  # log of the noise before training


class RecordEnNF(eqx.Module):
    """Correct a classical analysis by networks of the whole ensemble, and learn the predictive law.

    In coordinates of the state, with the forecast's mean m, anomalies a_i, spread s and the increments of the `base`: the mean
    moves by a learned share of the base's increment and by learned shifts in units of s and of the climate; anomalies are the
    forecast's and the base's by learned shares, turned along the predicted value, with learned noise. Before training it is the
    base with a little noise. It is equivariant in the members, takes any number of them, and one number of observed values.

    Args:
        names: coordinates of each variable, as in `Transformed.by`.
        seen: those of the observed values.
        states: a sample in whose units the state is measured, one row each.
        contexts: a sample of further inputs of the networks; then a window's inputs have it under the name "context".
        observations: number of observed values.
        climate: how much each coordinate varies in time; None for the deviation of the sample.

    Example:
        >>> from bieqno.assimilation import Observation, Poisson
        >>> states = jnp.array([[1.0], [5.0], [9.0]])
        >>> filter = RecordEnNF(["log1p"], "sqrt", states, key=jax.random.key(0))
        >>> observed = Observation([0], Poisson()).window(jnp.array([4.0]))
        >>> filter(states, observed, key=jax.random.key(1)).shape
        (3, 1)
    """

    base: Filter
    analysis: MLP
    prediction: MLP
    state_units: Standardiser
    context_units: Standardiser
    to: Coordinates
    back: Coordinates
    seen: str = eqx.field(static=True)
    climate: Float[Array, "n"] = frozen()  # how much a coordinate varies in time

    def __init__(
        self,
        names: Sequence[str],
        seen: str,
        states: Float[Array, "T n"],
        *,
        contexts: Float[Array, "U c"] | None = None,
        observations: int = 1,
        climate: Any = None,
        width: int = 64,
        key: PRNGKeyArray,
    ) -> None:
        self.to, self.back, self.seen = Coordinates(tuple(names)), Coordinates(tuple(names), back=True), seen
        self.base = Transformed.by(ETKF(), names, seen)
        z = jax.vmap(self.to)(states)
        contexts = jnp.zeros((1, 0)) if contexts is None else contexts
        self.state_units, self.context_units = Standardiser.of(z, axis=0), Standardiser.of(contexts, axis=0)
        self.climate = jnp.maximum(jnp.std(z, axis=0) if climate is None else jnp.asarray(climate, float), LEAST)
        n, m, c = len(self.to.names), observations, contexts.shape[1]
        keys = jax.random.split(key)
        settings: Any = {"width": width, "depth": 3, "activation": jax.nn.gelu}
        self.analysis = _silent(MLP(4 * n + 6 * m + c + 1, TERMS * n, key=keys[0], **settings))
        self.prediction = _silent(MLP(2 * n + 5 * m + c + 1, max(1, 3 * NORMALS * m), key=keys[1], **settings))

    def __check_init__(self) -> None:
        n, c = len(self.to.names), self.context_units.mean.size
        if self.climate.shape != (n,) or self.state_units.mean.shape != (n,):
            raise ValueError(f"units of {n} coordinates are needed, got shapes {self.climate.shape}")
        size = self.analysis.layers[0].weight.shape[1]
        if (size - 4 * n - c - 1) % 6 or self.analysis.layers[-1].weight.shape[0] != TERMS * n:
            raise ValueError(f"networks do not fit {n} variables and a context of {c} numbers")

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window."""
        guess = self.base(ensemble, observed, key=key)
        noise = white_noise(ensemble.shape, ensemble.dtype, key=jax.random.fold_in(key, 5))
        return observed.or_prior(self.correct(ensemble, guess, observed, noise), ensemble)

    def correct(
        self, ensemble: Float[Array, "N n"], guess: Float[Array, "N n"], observed: Observed, noise: Float[Array, "N n"]
    ) -> Float[Array, "N n"]:
        """Return the analysis, from that of the base and one row of noise per member."""
        z, guess = jax.vmap(self.to)(ensemble), jax.vmap(self.to)(guess)
        m, a, s = _moments(z)
        guessed = jnp.mean(guess, axis=0)
        h, spread, error, total = self._seen(ensemble, observed)
        centre = jnp.mean(h, axis=0)
        # Where a member stands among all, by what it predicts.
        scaled = jnp.where(observed.mask, (h - centre) / jnp.maximum(spread, LEAST), 0)
        count = jnp.maximum(jnp.sum(observed.mask), 1).astype(z.dtype)
        along = jnp.sum(scaled, axis=1, keepdims=True) / jnp.sqrt(count)
        value = jnp.where(observed.mask, PAIRS[self.seen][0](observed.value), centre)
        innovation = _bounded((value - centre) / total)
        features = [
            *self._of_state(m, s),
            jnp.mean(a * along, axis=0) / s,
            _bounded((guessed - m) / s),
            *(centre / 10, jnp.log(spread + LEAST), jnp.log(error), innovation, innovation**2 / FARTHEST, value / 10),
            self._context(observed, len(ensemble)),
        ]
        share, shift, jump, old, new, turn, loud = self.analysis(*features).reshape(TERMS, -1)
        mean = m + (1 + share) * (guessed - m) + s * shift + self.climate * jump
        own = (1 + old) * a + (1 + new) * ((guess - guessed) - a)
        stirred = (s + 0.1 * self.climate) * jnp.exp(QUIET + loud) * (noise - jnp.mean(noise, axis=0))
        return jax.vmap(self.back)(mean + own + s * turn * along + stirred)

    def predictive(
        self, prior: Float[Array, "N n"], observed: Observed
    ) -> tuple[Float[Array, "1 m"], TransformedNormals]:
        """Return the law of the next value: normal distributions in the coordinates of the values."""
        m, _, s = _moments(jax.vmap(self.to)(prior))
        h, spread, error, total = self._seen(prior, observed)
        centre = jnp.mean(h, axis=0)
        ends = [(end(h, axis=0) - centre) / total for end in (jnp.min, jnp.max)]
        features = [*self._of_state(m, s), centre / 10, jnp.log(spread + LEAST), jnp.log(error), *ends]
        found = self.prediction(*features, self._context(observed, len(prior))).reshape(3, NORMALS, -1)
        begin = jnp.linspace(-0.5, 0.5, NORMALS)[:, None]
        law = TransformedNormals(
            jax.nn.log_softmax(found[0], axis=0),
            centre + total * (begin + found[1]),
            total * jnp.exp(jnp.clip(found[2] - 0.1, -5, 5)),
            self.seen,
            bool(getattr(observed.error, "counts", False)),
        )
        return jnp.mean(observed.predict(prior), axis=0, keepdims=True), law

    def _of_state(self, m: Float[Array, "n"], s: Float[Array, "n"]) -> list[Float[Array, "n"]]:
        return [self.state_units(m), 0.5 * jnp.log(s / self.climate)]

    def _context(self, observed: Observed, members: int) -> Float[Array, "c"]:
        context = jnp.zeros(0)
        if self.context_units.mean.size:
            if not isinstance(observed.inputs, dict) or "context" not in observed.inputs:
                raise ValueError(
                    'this filter was trained with a context: give it as the input "context" of each window'
                )
            context = self.context_units(observed.inputs["context"])
        return jnp.concatenate([context, jnp.log(jnp.array([members / 20.0]))])

    def _seen(
        self, ensemble: Float[Array, "N n"], observed: Observed
    ) -> tuple[Float[Array, "N m"], Float[Array, "m"], Float[Array, "m"], Float[Array, "m"]]:
        """Return transformed predictions, their spread, that of the errors, and both together."""
        h, variance = SeenLaw(observed.error, self.seen).moments(observed.predict(ensemble))
        # A sum of squares is not zero: its root has a derivative.
        spread, error = jnp.sqrt(jnp.var(h, axis=0) + 1e-12), jnp.sqrt(jnp.mean(variance, axis=0) + LEAST**2)
        return h, spread, error, jnp.sqrt(spread**2 + error**2)


def _moments(z: Float[Array, "N n"]) -> tuple[Float[Array, "n"], Float[Array, "N n"], Float[Array, "n"]]:
    """Return mean, anomalies and spread."""
    m = jnp.mean(z, axis=0)
    a = z - m
    return m, a, jnp.sqrt(jnp.mean(a**2, axis=0) + LEAST**2)


def _bounded(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return FARTHEST * jnp.tanh(x / FARTHEST)


def _silent(network: MLP) -> MLP:
    """Return a network whose results are zero before it is trained."""
    return eqx.tree_at(lambda n: n.layers[-1].weight, network, replace_fn=jnp.zeros_like)
