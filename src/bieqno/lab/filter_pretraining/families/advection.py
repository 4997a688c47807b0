"""Linear advection and diffusion with decay, driven by smooth noise: linear and Gaussian."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import AbstractEnsembleModel, Places
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

SIZE = 48


class Advection(AbstractEnsembleModel):
    """A tracer on a ring of circumference 2 pi, exact in Fourier space; noise keeps the variance of each wave."""

    speed: Float[Array, ""]
    diffusion: Float[Array, ""]
    decay: Float[Array, ""]
    slope: Float[Array, ""]  # of the spectrum
    length: Float[Array, ""]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""
        wave = np.arange(SIZE // 2 + 1)
        rate = self.decay + self.diffusion * wave**2
        factor = jnp.exp(-rate * self.length) * jnp.exp(-1j * wave * self.speed * self.length)
        amplitude = jnp.exp(-self.slope * np.log1p(wave)) * jnp.sqrt(-jnp.expm1(-2 * rate * self.length))
        white = jnp.fft.rfft(jax.random.normal(key, ensemble.shape, ensemble.dtype))
        return jnp.fft.irfft(factor * jnp.fft.rfft(ensemble) + amplitude * white, SIZE)


def _draw(rng: np.random.Generator) -> Advection:
    return Advection(
        speed=uniform(rng, -1.5, 1.5),
        diffusion=log_uniform(rng, 1e-3, 0.03),
        decay=log_uniform(rng, 0.02, 0.3),
        slope=uniform(rng, 0.7, 2.0),
        length=log_uniform(rng, 0.1, 1.0),
    )


FAMILY = Family("advection", Places.grid(SIZE, period=float(SIZE)), _draw, lambda rng: rng.normal(size=SIZE), 300)
