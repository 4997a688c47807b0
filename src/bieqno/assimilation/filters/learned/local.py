"""The local ensemble neural filter: a local ensemble transform for each variable, steered and corrected by networks.

The base is an LETKF: mean and anomalies of each variable change by the exact square-root analysis of the observations near it.
Its radius and inflation are learned, as functions of the ensemble size and of what is seen near a variable. A correction
moves the mean, stretches the anomalies by a smooth field, adds smooth noise, and moves members by the paper's equivariant
operator; it begins at zero. Weights are shared by all places: they serve on other grids and observing networks.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.assimilation.filters.learned.local_features import SEEN
from bieqno.assimilation.filters.learned.local_network import FieldNetwork, StencilSum
from bieqno.assimilation.filters.learned.local_update import SIZE, AbstractLocalUpdate
from bieqno.assimilation.filters.learned.pretrained import PretrainedEnNF, shipped_filter
from bieqno.assimilation.filters.transform import LETKF
from bieqno.assimilation.filters.wrappers import Inflated
from bieqno.assimilation.geometry import marked
from bieqno.assimilation.linalg import white_noise
from bieqno.assimilation.neighbourhoods import Neighbourhoods
from bieqno.assimilation.observation import Observed
from bieqno.assimilation.system import Climate, System
from bieqno.compilation import quick_jit
from bieqno.operators import EquivariantOperator, Standardiser

BEYOND = 1.25  # how far beyond the farthest state of the free runs an analysis may be
ANALYSED = 4  # fields that are known after the base analysis
MEMBER = 6  # numbers that describe a member at a variable


@quick_jit
def _networks(
    dimensions: int, kinds: tuple[int, int], width: int, channels: int, *, key: PRNGKeyArray
) -> tuple[StencilSum, FieldNetwork, FieldNetwork, StencilSum, EquivariantOperator]:
    """Return the networks of a new filter, whose corrections are zero, for `kinds` of variables and of observations."""
    keys = jax.random.split(key, 5)
    count, both = kinds[0], (kinds[0], kinds[0])
    shape: Any = {"dimensions": dimensions, "kinds": count}
    seen, outputs = SEEN + count + 2 * channels, 4 + channels
    silu: Any = {"activation": jax.nn.silu, "depth": 2}
    inside = min(16, max(1, width // 2))
    operator = EquivariantOperator(MEMBER, 1, context_size=channels, width=inside, **silu, key=keys[4])
    return (
        StencilSum(dimensions, 2 * channels, kinds=kinds, key=keys[0]),
        FieldNetwork(seen, 2, width=16, depth=1, key=keys[1], **shape),
        FieldNetwork(seen + ANALYSED, outputs, width=width, depth=2, key=keys[2], **shape),
        StencilSum(dimensions, 3, kinds=both, key=keys[3]),
        eqx.tree_at(lambda o: o.fit.layers[-1].weight, operator, replace_fn=jnp.zeros_like),
    )


class LocalEnNF(AbstractLocalUpdate):
    """Analyses each variable by what was observed near it: an LETKF whose settings and corrections are learned.

    Takes ensembles of any size, any number of variables and observations, and missing values; on a periodic domain it is
    equivariant to translations. With nothing observed the prior is returned as it is. Trained by `train_filter`.

    Example:
        >>> from bieqno.assimilation import Lorenz96, Observation, Places
        >>> system = System(Lorenz96(8), Observation([0], 1.0), jnp.full(8, 8.0), Places.grid(8, period=8.0))
        >>> filter = LocalEnNF.untrained(system, radius=4.0, reach=1.0, key=jax.random.key(0))
        >>> prior = jax.random.normal(jax.random.key(1), (5, 8))
        >>> observed = system.observation.window(jnp.array([2.0]))
        >>> posterior = jax.jit(lambda prior: filter(prior, observed, key=jax.random.key(2)))(prior)
        >>> (jnp.abs(posterior.mean(axis=0) - prior.mean(axis=0)) > 1e-4).tolist()
        [True, True, False, False, False, False, False, True]
    """

    settled: bool = eqx.field(static=True, default=False)
    # Sizes that it was validated at, and where the base was the better one its radius and inflation.
    judged: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    conditions: tuple[str, float, float] | None = eqx.field(static=True, default=None)  # that it was trained for

    base_settings: ClassVar[Mapping[str, Sequence[float]]] = MappingProxyType(
        {"radius": (0.1, 0.2, 0.35, 0.6, 1.0, 2.0), "inflation": (1.01, 1.02, 1.05, 1.1, 1.2)}
    )
    """Settings of the base and the values to try; radii are in units of that of the neighbourhoods.

    All inflate: without it a filter may look best on a few short truths, and lose one of many long ones.
    """

    @classmethod
    def untrained(
        cls,
        system: System,
        *,
        radius: float | None = None,
        reach: float | None = None,
        width: int = 32,
        channels: int = 8,
        key: PRNGKeyArray,
    ) -> "LocalEnNF":
        """Return a filter with new weights, which is an LETKF before training.

        Free runs of the system's model give the units. An observation can act within the `radius`, each variable sees others
        within the `reach`; see `System.neighbourhoods` for the defaults. `width` is the number of hidden fields of the
        correction, `channels` that of combinations of innovations, and of inputs of the operator over members.
        """
        climate_key, weight_key = jax.random.split(key)
        around = system.neighbourhoods(radius, reach)
        states = Climate.of(system, key=climate_key).states
        climate, extent = _units(states, np.asarray(around.variables))
        return cls.new(around, climate, extent, width=width, channels=channels, key=weight_key)

    @staticmethod
    def pretrained() -> PretrainedEnNF:
        """Return the filter that ships with the package, for any system: ``LocalEnNF.pretrained().at(system)``."""
        return shipped_filter()

    @classmethod
    def new(
        cls,
        neighbourhoods: Neighbourhoods,
        climate: Standardiser,
        extent: Float[Array, "p"],
        *,
        width: int = 32,
        channels: int = 8,
        key: PRNGKeyArray,
    ) -> "LocalEnNF":
        """Return a filter with new weights in given units: `climate` and `extent` have one number per kind of variable."""
        for name, number in (("width", width), ("channels", channels)):
            if number < 1:
                raise ValueError(f"a LocalEnNF needs {name} of at least 1, got {number}")
        observed = int(jnp.max(neighbourhoods.observations, initial=0)) + 1
        kinds = len(extent), observed
        return cls(
            jnp.array([jnp.log(0.5), 0.5]),
            jnp.array([0.03, -0.02]),
            *_networks(neighbourhoods.near.dimensions, kinds, width, channels, key=key),
            climate=climate,
            extent=extent,
            neighbourhoods=neighbourhoods,
        )

    @checked()
    def __call__(self, ensemble: Float[Array, "N n"], observed: Observed, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Analyse one window; at ensemble sizes at which training did not help by the base alone."""
        nearest = min(self.judged, key=lambda size: abs(math.log(size[0] / ensemble.shape[0])), default=(0,))
        if len(nearest) > 1:
            moved = self.base(*nearest[1:])(ensemble, observed, key=key)
            return observed.or_prior(self._within_extent(moved), ensemble)
        return self.analyse(ensemble, observed, jnp.ones(ensemble.shape[0], bool), key=key)

    def analyse(
        self, ensemble: Float[Array, "N n"], observed: Observed, present: Bool[Array, "N"], *, key: PRNGKeyArray
    ) -> Float[Array, "N n"]:
        """Analyse an ensemble of which some members are `present` and the others padding, which means nothing."""
        white = None if observed.part is None else observed.part.white
        white = self.noise(ensemble.shape, ensemble.dtype, key=key) if white is None else white
        return self.analyse_with(white, ensemble, observed, present)

    def noise(self, shape: tuple[int, ...], dtype: DTypeLike, *, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the standard normal numbers that the analysis of a whole state draws."""
        return white_noise(shape, dtype, key=jax.random.fold_in(key, 1))

    def needs(self, variables: Int[np.ndarray, "k"]) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]:
        """Return the variables and observations that the analysis of some variables looks at."""
        around = self.neighbourhoods
        # Each block of a network on fields looks beside every variable, and the correction sees what was steered.
        for _ in range(len(self.steering.beside) + len(self.correction.beside)):
            variables = np.flatnonzero(marked(around.beside.reaching(variables), len(around.variables)))
        return variables, around.near.reaching(variables)

    def part(self, variables: Int[np.ndarray, "k"], observations: Int[np.ndarray, "l"]) -> "LocalEnNF":
        """Return the same for a part of the state and some observations, numbered as in these lists."""
        return dataclasses.replace(self, neighbourhoods=self.neighbourhoods.part(variables, observations))

    def base(self, radius: float | Float[Array, ""], inflation: float | Float[Array, ""]) -> Inflated:
        """Return the base alone, an inflated LETKF: what the filter is before training, and falls back on."""
        around = self.neighbourhoods
        near = around.near.neighbours(around.radius, len(around.observations))
        return Inflated(LETKF(near, radius * around.radius), inflation)

    def begin_with(self, found: Mapping[int, Mapping[str, float]]) -> "LocalEnNF":
        """Return the same with the base's settings as found for some ensemble sizes, interpolated in their logarithm."""
        sizes = np.log(np.array(list(found)) / SIZE)
        logs = np.log([[best["radius"], best["inflation"]] for best in found.values()])
        slope, level = np.polyfit(sizes, logs, 1) if len(sizes) > 1 else (np.zeros(2), logs[0])
        laws = tuple(jnp.array([level[k], slope[k]], jnp.result_type(float)) for k in range(2))
        begun = eqx.tree_at(lambda f: (f.log_radius, f.log_inflation), self, laws)
        return dataclasses.replace(begun, settled=True)

    def without_fall_back(self, sizes: Sequence[int]) -> tuple["LocalEnNF", dict[int, dict[str, float]]]:
        """Return the same without its base at some sizes, and the settings of the base at those of them that had it."""
        own = [size for size in self.judged if int(size[0]) in sizes]
        kept = tuple(size for size in self.judged if size not in own)
        settings = {int(size): dict(zip(self.base_settings, found, strict=True)) for size, *found in own if found}
        return dataclasses.replace(self, judged=kept), settings

    def trained_for(self, conditions: tuple[str, float, float]) -> "LocalEnNF":
        """Return the same, which knows what it was trained for."""
        return dataclasses.replace(self, conditions=conditions)

    def falling_back(self, better: Mapping[int, Mapping[str, float]]) -> "LocalEnNF":
        """Return the same, which is its base at those sizes, and sizes next to them, for which settings are given."""
        others = (size for size in self.judged if int(size[0]) not in better)
        judged = ((float(size), *(best[name] for name in self.base_settings if best)) for size, best in better.items())
        return dataclasses.replace(self, judged=(*others, *judged))

    def at(self, neighbourhoods: Neighbourhoods) -> "LocalEnNF":
        """Return the same weights elsewhere: on another grid, with another observing network."""
        own, other = ((around.radius, around.reach) for around in (self.neighbourhoods, neighbourhoods))
        if own != other:
            raise ValueError(
                f"these weights are for a radius of {own[0]:g} and a reach of {own[1]:g}, "
                f"the neighbourhoods have {other[0]:g} and {other[1]:g}"
            )
        return dataclasses.replace(self, neighbourhoods=neighbourhoods)

    def on(self, system: System, climate: Climate) -> "LocalEnNF":
        """Return the same weights for another system: at its places, and in the units of its `Climate.of(system, key=...)`."""
        around = system.neighbourhoods(self.neighbourhoods.radius, self.neighbourhoods.reach)
        units, extent = _units(climate.states, np.asarray(around.variables))
        return dataclasses.replace(self.at(around), climate=units, extent=extent)


def _units(states: Float[Array, "r n"], kinds: Int[np.ndarray, "n"]) -> tuple[Standardiser, Float[Array, "p"]]:
    """Return mean and standard deviation of each kind, and how many deviations from the mean an analysis may be."""
    found = [
        Standardiser.of(states[:, kinds == kind]) if np.any(kinds == kind) else Standardiser.unit()
        for kind in range(int(kinds.max(initial=0)) + 1)
    ]
    climate = Standardiser(jnp.stack([s.mean for s in found]), jnp.stack([s.scale for s in found]))
    far = np.asarray(jnp.max(jnp.abs(states - climate.mean[kinds]) / climate.scale[kinds], axis=0))
    return climate, jnp.array([BEYOND * max(1.0, *far[kinds == kind]) for kind in range(len(found))])
