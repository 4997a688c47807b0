"""DAPPER, both ways: filters of bieqno in its experiments, and its set-ups as a `System`.

Needs DAPPER (Raanes et al. 2024, JOSS) itself: ``pip install dapper``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation import Filter, HostModel, Lorenz63, Lorenz96, NoisyModel, Observation, Places, System
from bieqno.assimilation.models.forecast import Model
from bieqno.assimilation.protocols import refuse_memory

try:
    from dapper.da_methods import da_method
    from dapper.da_methods.ensemble import add_noise, ens_method, post_process
    from dapper.tools.progressbar import progbar
except ImportError as error:
    raise ImportError("bieqno.interop.dapper needs DAPPER: pip install dapper") from error


def _method(cls: type) -> Any:
    """Return a class as a method of DAPPER: by its decorator (1.7), or with its base classes (1.8)."""
    if not isinstance(da_method, type):
        return ens_method(cls)
    own = {name: part for name, part in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return type(cls.__name__, (da_method, ens_method), own)


@_method
class Analysis:
    """A filter of bieqno as a method of DAPPER, to be added to its experiments: ``xps += Analysis(ETKF(), N=24, infl=1.013)``.

    Forecasts, statistics, inflation `infl` and rotation `rot` are DAPPER's own, the analysis is the filter's.

    Args:
        filter: any filter; one that localises is built for the system, see `from_dapper`.
        N: ensemble size.
        seed: of what the filter draws at random.
    """

    filter: Any
    N: int
    seed: int = 0

    def assimilate(self, HMM: Any, xx: Any, yy: Any) -> None:
        """Take an ensemble through the observations of an experiment."""
        E = HMM.X0.sample(self.N)
        self.stats.assess(0, E=E)  # type: ignore[attr-defined]
        analyse = _analysis_of(self.filter, HMM, jax.random.key(self.seed))
        for k, ko, t, dt in progbar(HMM.tseq.ticker):
            E = add_noise(HMM.Dyn(E, t - dt, dt), dt, HMM.Dyn.noise, "Stoch")
            if ko is not None:
                self.stats.assess(k, ko, "f", E=E)  # type: ignore[attr-defined]
                E = post_process(analyse(E, yy[ko], ko), self.infl, self.rot)  # type: ignore[attr-defined]
            self.stats.assess(k, ko, E=E)  # type: ignore[attr-defined]


def _analysis_of(filter: Filter, HMM: Any, key: Any) -> Callable[[np.ndarray, np.ndarray, int], np.ndarray]:
    """Return the analysis of one window of an experiment, compiled once for all windows that observe the same."""
    refuse_memory(filter, "DAPPER")
    # With each program its operator, so that no later one has the same identity.
    compiled: dict[int, tuple[Any, Any]] = {}

    def analyse(E: np.ndarray, y: np.ndarray, ko: int) -> np.ndarray:
        operator = HMM.Obs(ko)
        if id(operator) not in compiled:
            observation = _observation(operator, E[0])
            program = jax.jit(lambda e, v, k: filter(e, observation.window(v), key=k))
            compiled[id(operator)] = operator, program
        members, values = (jnp.asarray(x, jnp.result_type(float)) for x in (E, y))
        # Statistics of DAPPER are in 64 bits.
        return np.asarray(compiled[id(operator)][1](members, values, jax.random.fold_in(key, ko)), np.float64)

    return analyse


def from_dapper(HMM: Any, *, places: Places | None = None) -> System:
    """Return a set-up of DAPPER (a `HiddenMarkovModel`) as a `System`, for the filters, `tune` and `train_filter`.

    Its Lorenz-63 and Lorenz-96 become those of bieqno, which are compiled and can be differentiated; any other model is called
    on the host. Model noise is added at the end of a window, with the variance of all of its steps. The ring of Lorenz-96 has
    places; of other models give them, and local filters can be used.
    """
    operator = HMM.Obs(0)
    if HMM.Obs(1) is not operator:
        raise ValueError("this set-up observes something else in each window; a System needs one network: see Shifted")
    mean = getattr(HMM.X0, "mu", None)
    start = HMM.X0.sample(1)[0] if mean is None else np.ravel(mean)  # one number is that of all variables
    state = jnp.broadcast_to(jnp.asarray(start, jnp.result_type(float)), (HMM.Nx,))
    model = _model(HMM)
    if places is None and isinstance(model, Lorenz96):
        places = Places.grid(HMM.Nx, period=float(HMM.Nx))
    noise = HMM.Dyn.noise
    if noise is not None and np.any(np.asarray(noise.C.full if noise.C != 0 else 0.0)):
        # Its noise is that of a unit of time.
        model = NoisyModel(model, np.asarray(noise.C.full) * HMM.tseq.dt * HMM.tseq.dko)
    return System(model, _observation(operator, np.asarray(state)), state, places)


def _model(HMM: Any) -> Model:
    """Return the dynamics of one window: ours where it is a model of ours, else DAPPER's own on the host."""
    import dapper.mods.Lorenz63
    import dapper.mods.Lorenz96

    dt, steps = HMM.tseq.dt, HMM.tseq.dko
    step = HMM.Dyn.model
    if step is dapper.mods.Lorenz96.step:
        return Lorenz96(HMM.Nx, float(dapper.mods.Lorenz96.Force), window=dt * steps, step=dt)
    if step is dapper.mods.Lorenz63.step:
        return Lorenz63(window=dt * steps, step=dt)

    def window(ensemble: np.ndarray) -> np.ndarray:
        for k in range(steps):
            ensemble = HMM.Dyn(ensemble, k * dt, dt)
        return ensemble

    return HostModel(window)


def _observation(operator: Any, state: np.ndarray) -> Observation:
    """Return what an operator of DAPPER observes: components or a matrix where it is linear, else a function on the host."""
    covariance = np.asarray(operator.noise.C.full)
    deviation = np.sqrt(np.diag(covariance))
    error = deviation if np.array_equal(covariance, np.diag(np.diag(covariance))) else covariance
    matrix = _matrix(operator, state)
    if matrix is not None:
        chosen = matrix.argmax(axis=1)
        plain = np.array_equal(matrix, np.eye(matrix.shape[1])[chosen])
        return Observation(chosen if plain else matrix, error)

    def observe(z: Float[Array, "n"]) -> Float[Array, "m"]:
        returned = jax.ShapeDtypeStruct((operator.M,), z.dtype)
        return jax.pure_callback(
            lambda x: np.asarray(operator(np.asarray(x)), z.dtype), returned, z, vmap_method="sequential"
        )

    return Observation(observe, error)


def _matrix(operator: Any, state: np.ndarray) -> np.ndarray | None:
    """Return the matrix of a linear operator; None for others."""
    if getattr(operator, "linear", None) is None:
        return None
    here, there = (np.asarray(operator.linear(x)) for x in (state, state + 1.0))
    return here if np.array_equal(here, there) and np.allclose(here @ state, operator(state)) else None
