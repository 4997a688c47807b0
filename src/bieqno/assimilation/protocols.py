"""What a filter is: one analysis, with padding where it takes any, with a state where it remembers earlier windows."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from bieqno.assimilation.observation import Observed


@runtime_checkable
class Filter(Protocol):
    """An analysis: takes a prior ensemble and what was observed to a posterior ensemble.

    A filter that assumes Gaussian errors says so by ``observed.gaussian(ensemble)``: what it does with another law is an
    approximation by two moments. One that asks such a law for a covariance is refused.

    Any function with this signature is a filter. With nothing observed it returns the prior. It passes `key` as it is to
    `Observed.perturb`, and folds a number of its own into it for other randomness, so that comparisons are paired.
    """

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the posterior ensemble, of the same shape."""


@runtime_checkable
class PaddedFilter(Protocol):
    """A filter that takes a mask of the members that are present, not padding: one compiled program for many sizes."""

    def analyse(
        self, ensemble: Float[Array, "N n"], observed: Observed, present: Bool[Array, "N"], *, key: PRNGKeyArray
    ) -> Float[Array, "N n"]:
        """Return the posterior ensemble; what its padding holds is finite and means nothing."""


@runtime_checkable
class StatefulFilter(Protocol):
    """A filter that remembers earlier windows: `cycle` carries its state, any PyTree of arrays."""

    def begin(self) -> PyTree[Any]:
        """Return the state before the first window."""

    def step(
        self,
        state: Any,
        ensemble: Float[Array, "N n"],
        observed: Observed,
        present: Bool[Array, "N"] | None = None,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "N n"], Any]:
        """Return the posterior ensemble, of members all or those `present`, and the state for the next window."""


def begin(filter: Filter) -> PyTree[Any]:
    """Return the state of a filter before the first window; None if it has none."""
    return filter.begin() if isinstance(filter, StatefulFilter) else None


def refuse_memory(filter: Filter, where: str) -> None:
    """Refuse a filter that remembers earlier windows where nothing would carry its state."""
    if isinstance(filter, StatefulFilter):
        raise TypeError(f"{where} would lose the memory of a {type(filter).__name__}; use it by itself")


def analysed(
    filter: Filter,
    state: PyTree[Any],
    ensemble: Float[Array, "N n"],
    observed: Observed,
    present: Bool[Array, "N"] | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[Array, PyTree[Any]]:
    """Analyse a window by a filter with or without a state; members that are not `present` are padding where it takes any."""
    if isinstance(filter, StatefulFilter):
        return filter.step(state, ensemble, observed, present, key=key)
    if present is not None and isinstance(filter, PaddedFilter):
        return filter.analyse(ensemble, observed, present, key=key), state
    return filter(ensemble, observed, key=key), state
