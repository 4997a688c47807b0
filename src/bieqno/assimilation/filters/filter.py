"""What every filter is: one call."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation.observation import Observed


@runtime_checkable
class Filter(Protocol):
    """An analysis: takes a prior ensemble and what was observed to a posterior ensemble.

    Any function with this signature is a filter. It passes `key` on as it is to `Observed.perturb`, and
    folds a number of its own into it for other randomness, so that comparisons between filters are paired.
    """

    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """The posterior ensemble, of the same shape."""
