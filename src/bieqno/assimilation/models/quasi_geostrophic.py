"""A wind-driven ocean: the quasi-geostrophic double gyre of Sakov and Oke (2008, Tellus 60A), a one-and-a-half-layer model.

The equation and its constants are those of EnKF-Matlab and of DAPPER, whose scores it is to be compared with. There the Helmholtz
equation is solved by a few multigrid cycles, here exactly, by sine transforms.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bieqno.assimilation.models.flows import count_steps, rk4

REFERENCE = 128  # intervals of the grid that the viscosity is given for


class QuasiGeostrophic(eqx.Module):
    """Stream function of a square basin, turbulent as it is; maps a state to the state one window later.

    The potential vorticity ``q = lap psi - froude psi`` changes by::

        q_t = -psi_x - rossby J(psi, q) - viscosity lap lap lap psi - wind sin(2 pi y / length)

    with psi and its Laplacians zero on the boundary. A state is psi at all ``side x side`` points, boundary included, row by
    row: ``state.reshape(side, side)[y, x]``, as in DAPPER. What it has on the boundary is set to zero.

    On a coarser grid the viscosity grows with the fourth power of the interval, so that it damps the shortest waves as fast.
    A small basin with the same interval, ``length=(side - 1) / 128``, is a patch of the large one with eddies of the same size.
    `window` and `step` are as in `Flow`.

    Example:
        >>> model = QuasiGeostrophic(17)
        >>> state = model(jnp.zeros(17 * 17)).reshape(17, 17)
        >>> bool(state[4, 8] > 0 > state[12, 8]), bool(jnp.allclose(state[0], 0))  # two gyres begin
        (True, True)
    """

    side: int = eqx.field(static=True, default=129)
    length: float = eqx.field(static=True, default=1.0)
    froude: float | Float[Array, ""] = 1600.0
    rossby: float | Float[Array, ""] = 1e-5
    wind: float | Float[Array, ""] = 2 * math.pi
    viscosity: float | Float[Array, ""] = 2e-12  # on a basin of length 1 with 128 intervals
    window: float = eqx.field(static=True, default=5.0, kw_only=True)
    step: float = eqx.field(static=True, default=1.25, kw_only=True)

    def __check_init__(self) -> None:
        count_steps(self.window, self.step)
        if self.side < 4 or not self.length > 0:
            raise ValueError(f"a basin has at least 4 points a side and a length, got {self.side} and {self.length}")

    @property
    def interval(self) -> float:
        """Distance between two points of the grid."""
        return self.length / (self.side - 1)

    def vorticity(self, stream: Float[Array, "s s"]) -> Float[Array, "s s"]:
        """Return the potential vorticity of a stream function; both without the boundary."""
        return laplacian(stream, self.interval) - self.froude * stream

    def invert(self, vorticity: Float[Array, "s s"]) -> Float[Array, "s s"]:
        """Return the stream function of a potential vorticity, exactly: sine waves are the eigenvectors of the Laplacian."""
        # Products with matrices of this size take less time than Fourier transforms of twice the size.
        waves, values = _sine_waves(self.side - 2)
        S, value = jnp.asarray(waves, vorticity.dtype), jnp.asarray(values, vorticity.dtype) / self.interval**2
        return S @ ((S @ vorticity @ S) / (value[:, None] + value - self.froude)) @ S

    def tendency(self, vorticity: Float[Array, "s s"]) -> Float[Array, "s s"]:
        """Return the time derivative of the potential vorticity."""
        stream, h = self.invert(vorticity), self.interval
        smooth = laplacian(laplacian(laplacian(stream, h), h), h)
        padded = jnp.pad(stream, 1)
        slope = (padded[1:-1, 2:] - padded[1:-1, :-2]) / (2 * h)
        y = jnp.arange(1, self.side - 1, dtype=vorticity.dtype) / (self.side - 1)
        blown = self.wind * jnp.sin(2 * jnp.pi * y)[:, None]
        viscosity = self.viscosity * (REFERENCE * h) ** 4
        return -slope - self.rossby * jacobian(stream, vorticity, h) - viscosity * smooth - blown

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        if state.shape != (self.side**2,):
            raise ValueError(f"this model has {self.side} x {self.side} variables, got shape {state.shape}")
        stream = state.reshape(self.side, self.side)[1:-1, 1:-1]
        steps = count_steps(self.window, self.step)
        vorticity = rk4(self.tendency, self.vorticity(stream), step=self.step, steps=steps)
        return jnp.pad(self.invert(vorticity), 1).reshape(-1)


def laplacian(field: Float[Array, "s s"], interval: float) -> Float[Array, "s s"]:
    """Return the five-point Laplacian of a field that is zero on the boundary around it."""
    f = jnp.pad(field, 1)
    return (f[2:, 1:-1] + f[:-2, 1:-1] + f[1:-1, 2:] + f[1:-1, :-2] - 4 * field) / interval**2


def jacobian(first: Float[Array, "s s"], second: Float[Array, "s s"], interval: float) -> Float[Array, "s s"]:
    """Return ``a_x b_y - a_y b_x`` in the form of Arakawa (1966), of rows y and columns x, zero on the boundary around.

    The mean of three forms that each are exact to second order. Sums of it, of it times `first` and of it times `second` are
    zero, so that advection changes neither energy nor enstrophy.

    Example:
        >>> field = jnp.arange(9.0).reshape(3, 3) ** 2
        >>> float(jnp.abs(jacobian(field, field, 1.0)).max())
        0.0
    """

    def shifts(field: Float[Array, "s s"]) -> list[Array]:
        """Return the eight neighbours: east, north-east, north, and so on round."""
        f, size = jnp.pad(field, 1), field.shape[0]
        around = ((1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0), (0, 1), (0, 2))
        return [f[y : y + size, x : x + size] for y, x in around]

    e, ne, n, nw, w, sw, s, se = shifts(first)
    E, NE, N, NW, W, SW, S, SE = shifts(second)
    plain = (e - w) * (N - S) - (n - s) * (E - W)
    outside = e * (NE - SE) - w * (NW - SW) - n * (NE - NW) + s * (SE - SW)
    inside = N * (ne - nw) - S * (se - sw) - E * (ne - se) + W * (nw - sw)
    return (plain + outside + inside) / (12 * interval**2)


def _sine_waves(size: int) -> tuple[Float[np.ndarray, "s s"], Float[np.ndarray, "s"]]:
    """Return the sine waves between two walls as a symmetric orthogonal matrix, and the second differences' eigenvalues."""
    number = np.arange(1, size + 1)
    waves = math.sqrt(2 / (size + 1)) * np.sin(math.pi / (size + 1) * np.outer(number, number))
    return waves, 2 * np.cos(math.pi / (size + 1) * number) - 2
