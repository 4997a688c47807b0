"""A learned map from coordinates to the joint distribution there, checked against an exact Gaussian process.

The second use of BI-EqNO in section 2.1 of the paper. One `PosteriorOperator` in the lean form of the paper's gGP, with
cross-attention from each test point to the observations, is trained on draws of a Gaussian process and then predicts
new draws in one pass. The exact posterior of that process is the best that any method can do.

Run it with ``python examples/coordinates_to_distribution.py`` (one or two minutes on two cores).
"""

# %% Draws of a Gaussian process, whose posterior is known exactly
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from rich.console import Console
from rich.table import Table

import bieqno
from bieqno.cli.output import training_bar

LENGTH_SCALE, NOISE, RANK, WIDTH = 0.25, 0.1, 16, 64
POINTS, OBSERVATIONS, BATCH, STEPS = 24, 16, 32, 3000


def kernel(a: Float[Array, "n"], b: Float[Array, "m"]) -> Float[Array, "n m"]:
    """The squared-exponential kernel of the process."""
    return jnp.exp(-0.5 * ((a[:, None] - b[None, :]) / LENGTH_SCALE) ** 2)


def draw(key: PRNGKeyArray, points: int, observations: int) -> tuple[Array, Array, Array]:
    """Test points, observations ``(x, y)`` as rows, and noisy values at the test points, all of one function."""
    x_key, f_key, noise_key = jax.random.split(key, 3)
    size = points + observations
    x = jax.random.uniform(x_key, (size,))
    f = jnp.linalg.cholesky(kernel(x, x) + 1e-5 * jnp.eye(size)) @ jax.random.normal(f_key, (size,))
    y = f + NOISE * jax.random.normal(noise_key, (size,))
    return x[:points, None], jnp.stack([x[points:], y[points:]], axis=1), y[:points]


def predict(
    operator: bieqno.PosteriorOperator, points: Float[Array, "n 1"], observations: Float[Array, "m 2"], mask: Array
) -> bieqno.LowRankGaussian:
    """The learned joint distribution of noisy values at the points."""
    out = operator(points, observations, observation_mask=mask)
    # No value can be surer than the noise: a floor keeps the likelihood bounded.
    log_diag = jnp.logaddexp(out[:, 1], 2 * jnp.log(NOISE))
    return bieqno.LowRankGaussian(out[:, 0], out[:, 2:], log_diag)


def exact_log_prob(points: Array, observations: Array, values: Array) -> Float[Array, ""]:
    """Log-probability of the values under the exact posterior of the process."""
    x, (xo, yo) = points[:, 0], observations.T
    K = kernel(xo, xo) + NOISE**2 * jnp.eye(len(xo))
    gain = jnp.linalg.solve(K, kernel(xo, x)).T
    covariance = kernel(x, x) - gain @ kernel(xo, x) + NOISE**2 * jnp.eye(len(x))
    return jax.scipy.stats.multivariate_normal.logpdf(values, gain @ yo, covariance)


# %% Batches of functions, and the loss
def sample_batch(key: PRNGKeyArray) -> tuple[Array, Array, Array, Array]:
    """Many functions at once, each with a random number of observations."""
    count_key, key = jax.random.split(key)
    cases = jax.vmap(lambda k: draw(k, POINTS, OBSERVATIONS))(jax.random.split(key, BATCH))
    counts = jax.random.randint(count_key, (BATCH, 1), 0, OBSERVATIONS + 1)
    return *cases, jnp.arange(OBSERVATIONS) < counts


def loss(operator: bieqno.PosteriorOperator, batch: tuple[Array, ...], *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Negative joint log-probability per point."""

    def of_one(points: Array, observations: Array, values: Array, mask: Array) -> Float[Array, ""]:
        return -predict(operator, points, observations, mask).log_prob(values) / POINTS

    return jnp.mean(jax.vmap(of_one)(*batch))


# %% Training
def train(steps: int = STEPS) -> bieqno.PosteriorOperator:
    """Train the map, with a progress bar."""
    pool_key, key = jax.random.split(jax.random.key(0))
    operator = bieqno.PosteriorOperator(
        1,
        2,
        2 + RANK,
        width=WIDTH,
        lean=True,
        inputs=bieqno.ElementwiseOperator(bieqno.MLP(1, WIDTH, fourier_features=16, fourier_scale=2.0, key=key)),
        pool=bieqno.CrossAttentionPool(WIDTH, query_size=WIDTH, heads=8, key=pool_key),
        fourier_features=16,
        fourier_scale=2.0,
        activation=jax.nn.silu,
        key=key,
    )
    with training_bar("training") as on_progress:
        result = bieqno.fit(
            operator,
            loss,
            sample_batch,
            steps=steps,
            optimizer=optax.adam(optax.cosine_decay_schedule(2e-3, steps)),
            key=jax.random.key(1),
            on_progress=on_progress,
        )
    return result.module


# %% Comparison with the exact posterior
def evaluate(operator: bieqno.PosteriorOperator, points: int, observations: int) -> tuple[float, float, float]:
    """Mean log-probability per point over fresh functions: prior (no observation), learned and exact posterior."""

    def of_one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        x, data, values = draw(key, points, observations)
        learned = predict(operator, x, data, jnp.ones(observations, bool)).log_prob(values)
        return exact_log_prob(x, data[:0], values), learned, exact_log_prob(x, data, values)

    scores = jax.jit(jax.vmap(of_one))(jax.random.split(jax.random.key(99), 200))
    prior, learned, exact = (float(jnp.mean(score)) / points for score in scores)
    return prior, learned, exact


def main() -> None:
    """Train, compare with the exact process, print."""
    operator = train()
    table = Table(title="Log-probability per point on 200 new functions (* = sizes never seen in training)")
    for name in ("points", "observations", "exact prior", "learned posterior", "exact posterior"):
        table.add_column(name, justify="right")
    for points, observations in [(24, 4), (24, 8), (24, 16), (8, 8), (50, 8), (50, 24)]:
        seen = points == POINTS and observations <= OBSERVATIONS
        scores = evaluate(operator, points, observations)
        table.add_row(f"{points}{' ' if seen else '*'}", f"{observations}", *(f"{score:.3f}" for score in scores))
    Console().print(table)


if __name__ == "__main__":
    main()
