"""The Klein-Gordon equation with damping, driven by smooth noise: linear dispersive waves of two kinds of variables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.assimilation import AbstractEnsembleModel, Places
from bieqno.lab.filter_pretraining.families.family import Family, log_uniform, uniform

SIZE = 24


class DispersiveWaves(AbstractEnsembleModel):
    """Displacements on a ring of circumference 2 pi, then velocities, exact in Fourier space; noise drives the latter."""

    speed: Float[Array, ""]
    stiffness: Float[Array, ""]  # frequency of the longest wave
    damping: Float[Array, ""]
    diffusion: Float[Array, ""]
    slope: Float[Array, ""]  # of the spectrum of the noise
    length: Float[Array, ""]

    def forecast(self, ensemble: Float[Array, "N n"], *inputs: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Return the ensemble one window later."""
        wave = np.arange(SIZE // 2 + 1)
        rate = self.damping + self.diffusion * wave**2
        square = self.stiffness**2 + (self.speed * wave) ** 2
        frequency = jnp.sqrt(jnp.maximum(square - rate**2, 1e-3))
        cosine, sine = (f(frequency * self.length) for f in (jnp.cos, jnp.sin))
        fade, sine = jnp.exp(-rate * self.length), sine / frequency
        u, v = (jnp.fft.rfft(part) for part in jnp.split(ensemble, 2, axis=1))
        white = jnp.fft.rfft(jax.random.normal(key, (len(ensemble), SIZE), ensemble.dtype))
        noise = jnp.exp(-self.slope * np.log1p(wave)) * jnp.sqrt(-jnp.expm1(-2 * rate * self.length)) * white
        after = fade * ((cosine + rate * sine) * u + sine * v), fade * ((cosine - rate * sine) * v - square * sine * u)
        return jnp.concatenate([jnp.fft.irfft(after[0], SIZE), jnp.fft.irfft(after[1] + noise, SIZE)], axis=1)


def _draw(rng: np.random.Generator) -> DispersiveWaves:
    return DispersiveWaves(
        speed=uniform(rng, 0.5, 1.5),
        stiffness=log_uniform(rng, 0.5, 2.0),
        damping=log_uniform(rng, 0.02, 0.2),
        diffusion=log_uniform(rng, 1e-3, 0.02),
        slope=uniform(rng, 0.7, 2.0),
        length=log_uniform(rng, 0.1, 1.0),
    )


_PLACES = Places.grid(SIZE, fields=2, period=float(SIZE))
FAMILY = Family("dispersive waves", _PLACES, _draw, lambda rng: rng.normal(size=2 * SIZE), 300)
