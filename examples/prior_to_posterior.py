"""A learned map from prior samples to posterior samples, checked against exact Bayes.

The first use of BI-EqNO in section 2.1 of the paper. Random linear-Gaussian problems in the plane: a prior known by
samples only, and observations ``d = h . z + noise``, each along its own direction h and with its own noise. One
`PosteriorOperator`, trained on 4 to 24 samples and up to 6 observations, is then asked for sizes that it never saw.

Run it with ``python examples/prior_to_posterior.py`` (one or two minutes on two cores).
"""

# %% Random problems whose posterior is known exactly
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import bieqno
from bieqno.cli.output import training_bar

SAMPLES, OBSERVATIONS, BATCH, STEPS = 24, 6, 64, 4000


def problem(key: PRNGKeyArray, samples: int, observations: int) -> dict[str, Array]:
    """A random prior, samples of it, and observations of one further draw."""
    keys = jax.random.split(key, 8)
    mean = jax.random.normal(keys[0], (2,))
    turn, *sd = jax.random.uniform(keys[1], (3,), minval=jnp.array([0, 0.5, 0.5]), maxval=jnp.array([jnp.pi, 1.5, 1.5]))
    factor = jnp.array([[jnp.cos(turn), -jnp.sin(turn)], [jnp.sin(turn), jnp.cos(turn)]]) * jnp.stack(sd)
    truth = mean + factor @ jax.random.normal(keys[2], (2,))
    angle = jax.random.uniform(keys[3], (observations,), maxval=jnp.pi)
    direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    noise = jax.random.uniform(keys[4], (observations,), minval=0.3, maxval=1.0)
    value = direction @ truth + noise * jax.random.normal(keys[5], (observations,))
    return {
        "mean": mean,
        "covariance": factor @ factor.T,
        "samples": mean + jax.random.normal(keys[6], (samples, 2)) @ factor.T,
        # Divided by the noise, observations of any quality have errors of size one.
        "observations": jnp.concatenate([direction, value[:, None]], axis=1) / noise[:, None],
        "key": keys[7],
    }


def exact_posterior(case: dict[str, Array], mask: Array) -> tuple[Float[Array, "2"], Float[Array, "2 2"]]:
    """Mean and covariance by Bayes' theorem, for the observations that the mask keeps."""
    H, d = case["observations"][:, :2] * mask[:, None], case["observations"][:, 2] * mask
    precision = jnp.linalg.inv(case["covariance"])
    covariance = jnp.linalg.inv(precision + H.T @ H)
    return covariance @ (precision @ case["mean"] + H.T @ d), covariance


def square_root(matrix: Float[Array, "2 2"]) -> Float[Array, "2 2"]:
    """The symmetric square root of a positive definite 2 x 2 matrix."""
    root = jnp.sqrt(jnp.linalg.det(matrix))
    return (matrix + root * jnp.eye(2)) / jnp.sqrt(jnp.trace(matrix) + 2 * root)


def exact_samples(case: dict[str, Array], mask: Array) -> Float[Array, "n 2"]:
    """The prior samples moved to the posterior by the optimal map between the two Gaussians."""
    mean, covariance = exact_posterior(case, mask)
    root = square_root(case["covariance"])
    inverse = jnp.linalg.inv(root)
    transport = inverse @ square_root(root @ covariance @ root) @ inverse
    return mean + (case["samples"] - case["mean"]) @ transport.T


# %% Batches of problems of random sizes, and what is learned from them
def sample_batch(key: PRNGKeyArray) -> dict[str, Array]:
    """Many problems at once, of random sizes by masks."""
    sample_key, observation_key, key = jax.random.split(key, 3)
    batch = jax.vmap(lambda k: problem(k, SAMPLES, OBSERVATIONS))(jax.random.split(key, BATCH))
    sizes = jax.random.randint(sample_key, (BATCH, 1), 4, SAMPLES + 1)
    counts = jax.random.randint(observation_key, (BATCH, 1), 0, OBSERVATIONS + 1)
    masks = {"sample_mask": jnp.arange(SAMPLES) < sizes, "observation_mask": jnp.arange(OBSERVATIONS) < counts}
    return batch | masks


def loss(operator: bieqno.PosteriorOperator, batch: dict[str, Array], *, key: PRNGKeyArray) -> Float[Array, ""]:
    """Squared distance to the exactly moved samples."""

    def of_one(case: dict[str, Array]) -> Float[Array, ""]:
        moved = operator(
            case["samples"],
            case["observations"],
            input_mask=case["sample_mask"],
            observation_mask=case["observation_mask"],
        )
        error = jnp.sum((moved - exact_samples(case, case["observation_mask"])) ** 2, axis=1)
        return jnp.sum(error * case["sample_mask"]) / jnp.sum(case["sample_mask"])

    return jnp.mean(jax.vmap(of_one)(batch))


# %% How far a set of samples is from the exact posterior
def divergence(samples: Float[Array, "n 2"], mean: Array, covariance: Array) -> Float[Array, ""]:
    """Kullback-Leibler divergence of the exact posterior from the Gaussian with the moments of the samples."""
    own_mean, own = jnp.mean(samples, axis=0), jnp.cov(samples.T)
    shift = mean - own_mean
    ratio = jnp.linalg.solve(own, covariance)
    return 0.5 * (jnp.trace(ratio) - 2 - jnp.log(jnp.linalg.det(ratio)) + shift @ jnp.linalg.solve(own, shift))


def evaluate(operator: bieqno.PosteriorOperator, samples: int, observations: int) -> tuple[float, float, float]:
    """Median divergence over fresh problems: of the prior samples, of the learned ones and of exactly moved ones."""

    def of_one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        case = problem(key, samples, observations)
        exact = exact_posterior(case, jnp.ones(observations))
        moved = operator(case["samples"], case["observations"])
        best = exact_samples(case, jnp.ones(observations))
        return divergence(case["samples"], *exact), divergence(moved, *exact), divergence(best, *exact)

    keys = jax.random.split(jax.random.key(99), 200)
    before, after, best = jax.jit(jax.vmap(of_one))(keys)
    return float(jnp.median(before)), float(jnp.median(after)), float(jnp.median(best))


# %% Training
def train(steps: int = STEPS) -> bieqno.PosteriorOperator:
    """Train the map, with a progress bar."""
    operator = bieqno.PosteriorOperator(
        2, 3, 2, width=32, activation=jax.nn.silu, pool=bieqno.MeanPool(count=True), key=jax.random.key(0)
    )
    with training_bar("training") as on_progress:
        result = bieqno.fit(
            operator,
            loss,
            sample_batch,
            steps=steps,
            optimizer=optax.adam(optax.cosine_decay_schedule(4e-3, steps)),
            key=jax.random.key(1),
            on_progress=on_progress,
        )
    return result.module


# %% One problem of a size that was never seen, before and after
def draw(operator: bieqno.PosteriorOperator) -> Figure:
    """Prior samples, and where the learned and the exact map take them."""
    case = problem(jax.random.key(5), 200, 9)
    mean, covariance = exact_posterior(case, jnp.ones(9))
    angle = jnp.linspace(0, 2 * jnp.pi, 100)
    circle = 2 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    before, after = figure.subplots(1, 2, sharex=True, sharey=True)
    before.scatter(*case["samples"].T, s=6, color="#999999")
    after.scatter(*operator(case["samples"], case["observations"]).T, s=6, color="#0072b2")
    for axes, title in ((before, "prior samples"), (after, "learned posterior samples, one pass")):
        axes.plot(*(mean + circle @ square_root(covariance)).T, "k", linewidth=1, label="exact posterior, 2 sd")
        axes.set_title(title, fontsize=9)
        axes.set_aspect("equal")
    before.legend(fontsize=8)
    return figure


# %% Train, compare with exact Bayes, draw
def main() -> None:
    """Train, compare with exact Bayes, print and draw."""
    operator = train()
    draw(operator).savefig("prior_to_posterior.png", dpi=100)
    table = Table(title="Divergence from the exact posterior (median of 200; * = sizes never seen)")
    for name in ("samples", "observations", "before (prior)", "learned map", "exact map, same samples"):
        table.add_column(name, justify="right")
    for samples, observations in [(16, 0), (16, 3), (24, 6), (64, 3), (64, 9), (512, 6), (512, 12)]:
        seen = samples <= SAMPLES and observations <= OBSERVATIONS
        scores = evaluate(operator, samples, observations)
        table.add_row(f"{samples}{' ' if seen else '*'}", f"{observations}", *(f"{score:.3f}" for score in scores))
    Console().print(table)


if __name__ == "__main__":
    main()
