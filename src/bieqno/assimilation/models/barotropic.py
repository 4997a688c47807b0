"""Two-dimensional turbulence: the barotropic vorticity equation on a doubly periodic square, by a pseudo-spectral method."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from bieqno.assimilation.models.flows import count_steps, rk4

RATE = 20.0  # at which the shortest waves are damped, if nothing else is said


class Barotropic(eqx.Module):
    """Vorticity on a torus of circumference 2 pi, turbulent at the defaults; maps a state to the state one window later.

    The vorticity changes by advection with its own flow, ``w = lap psi``::

        w_t = -J(psi, w) - drag w - viscosity lap lap w - forcing wave cos(wave y)

    a wind ``forcing sin(wave y)`` towards x, a drag on all scales, and a viscosity on the smallest. Products are free of aliasing
    by the 2/3 rule: waves beyond a third of the grid's are dropped. So energy and enstrophy are conserved where there is neither
    drag, viscosity nor forcing. A state is the vorticity at all ``side x side`` points, row by row:
    ``state.reshape(side, side)[y, x]``. `window` and `step` are as in `Flow`.

    The default `viscosity`, None, damps the shortest waves at the same rate on any grid.

    Example:
        >>> rest = Barotropic(16, forcing=0.0, viscosity=0.0)
        >>> x = jnp.arange(16) * 2 * jnp.pi / 16
        >>> wave = jnp.tile(jnp.sin(x), (16, 1)).reshape(-1)  # a wave that does not advect itself
        >>> round(float(rest(wave)[4]), 3)  # exp(-0.1 * 0.5), by the drag
        0.951
    """

    side: int = eqx.field(static=True, default=64)
    drag: float | Float[Array, ""] = 0.1
    forcing: float | Float[Array, ""] = 1.0
    wave: int = eqx.field(static=True, default=4)
    viscosity: float | Float[Array, ""] | None = None
    window: float = eqx.field(static=True, default=0.5, kw_only=True)
    step: float = eqx.field(static=True, default=0.025, kw_only=True)

    def __check_init__(self) -> None:
        count_steps(self.window, self.step)
        if self.side < 4 or self.side % 2 or not 0 < self.wave < self.side / 3:
            raise ValueError(
                f"a torus has an even number of points a side, at least 4, and a forcing of less than a third as many waves; "
                f"got {self.side} and {self.wave}"
            )

    def tendency(self, spectrum: Complex[Array, "s h"]) -> Complex[Array, "s h"]:
        """Return the time derivative of the Fourier coefficients of the vorticity."""
        ky, kx, kept = _waves(self.side)
        square = jnp.asarray(kx**2 + ky**2, spectrum.real.dtype)
        viscosity = RATE / float(np.max((kx**2 + ky**2) * kept)) ** 2 if self.viscosity is None else self.viscosity
        damped = -(self.drag + viscosity * square**2) * spectrum
        y = jnp.arange(self.side, dtype=square.dtype) * (2 * math.pi / self.side)
        blown = -self.forcing * self.wave * jnp.cos(self.wave * y)
        # The forcing is the same at all x: it has waves in y alone.
        blown = jnp.fft.fft(blown) * self.side
        return (self.advection(spectrum) + damped).at[:, 0].add(blown) * kept

    def advection(self, spectrum: Complex[Array, "s h"]) -> Complex[Array, "s h"]:
        """Return ``-J(psi, w)``, without aliasing."""
        ky, kx, kept = _waves(self.side)
        spectrum = spectrum * kept
        square = np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, 1).astype(spectrum.real.dtype)
        stream = -spectrum / square

        def back(wave: np.ndarray, of: Complex[Array, "s h"]) -> Float[Array, "s s"]:
            return jnp.fft.irfft2(1j * wave.astype(of.real.dtype) * of, s=(self.side, self.side))

        product = back(kx, stream) * back(ky, spectrum) - back(ky, stream) * back(kx, spectrum)
        return -jnp.fft.rfft2(product) * kept

    def __call__(self, state: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return the state one window later."""
        if state.shape != (self.side**2,):
            raise ValueError(f"this model has {self.side} x {self.side} variables, got shape {state.shape}")
        spectrum = jnp.fft.rfft2(state.reshape(self.side, self.side)) * _waves(self.side)[2]
        spectrum = rk4(self.tendency, spectrum, step=self.step, steps=count_steps(self.window, self.step))
        return jnp.fft.irfft2(spectrum, s=(self.side, self.side)).reshape(-1)


def _waves(side: int) -> tuple[Float[np.ndarray, "s 1"], Float[np.ndarray, "1 h"], Float[np.ndarray, "s h"]]:
    """Return the wave numbers in y and x of real Fourier coefficients, and 1 for those that are kept, 0 for the others."""
    ky, kx = np.fft.fftfreq(side, 1 / side)[:, None], np.fft.rfftfreq(side, 1 / side)[None]
    return ky, kx, ((np.abs(ky) < side / 3) & (kx < side / 3)).astype(np.float32)
