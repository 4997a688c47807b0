"""Bayesian optimisation over candidates: where to measure next, from joint samples.

The Branin function, with noise, on 400 candidates. In each round four joint samples of all candidates are drawn, and the
candidates are measured at which they are least (Thompson sampling). Of independent samples the least would be one of the noise.

Run it with ``python examples/bayesian_optimisation.py`` (about two minutes).
"""

# %% The function to minimise, and the candidates
import numpy as np
from matplotlib.figure import Figure

from bieqno import PretrainedGGPRegressor

ROUNDS, AT_ONCE, NOISE = 10, 4, 1.0
LEAST = 0.397887  # the minimum, known for this function


def branin(x: np.ndarray) -> np.ndarray:
    """Three minima of equal depth."""
    u, v = 15 * x[:, 0] - 5, 15 * x[:, 1]
    return (v - 5.1 / (4 * np.pi**2) * u**2 + 5 / np.pi * u - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(u) + 10


random = np.random.default_rng(0)
candidates = random.uniform(size=(400, 2))

# %% Begin with eight random measurements; then fit, draw joint samples, and measure where each has its least value
chosen = random.choice(400, 8, replace=False)
X, y = candidates[chosen], branin(candidates[chosen]) + NOISE * random.normal(size=8)
history = [branin(X).min()]
for number in range(ROUNDS):
    model = PretrainedGGPRegressor().fit(X, y)
    samples = model.sample_y(candidates, AT_ONCE, random_state=number)  # (400, 4)
    new = candidates[np.unique(samples.argmin(axis=0))]
    X, y = np.concatenate([X, new]), np.concatenate([y, branin(new) + NOISE * random.normal(size=len(new))])
    history.append(branin(X).min())
print(
    f"best of {len(X)} measured: {history[-1]:.2f}; best candidate {branin(candidates).min():.2f}, minimum {LEAST:.2f}"
)

# %% The same number of random measurements, a hundred times
picks = [branin(candidates[random.choice(400, len(X), replace=False)]) for _ in range(100)]
print(f"random search: median {np.median([values.min() for values in picks]):.2f}")

# %% Picture: what is known of the function at the end, and where it was measured
side = np.linspace(0, 1, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure = Figure(figsize=(7.2, 3.0), layout="constrained")
left, right = figure.subplots(1, 2)
image = left.contourf(side, side, model.predict(grid).reshape(60, 60), 15, cmap="viridis_r")
left.plot(*X.T, "w.", markersize=5, markeredgecolor="k", markeredgewidth=0.4)
left.set_title("predicted mean, and what was measured", fontsize=9)
left.set(xlabel="x", ylabel="y")
figure.colorbar(image, ax=left)
right.plot(history, "o-", color="#0072b2", label="found")
right.axhline(LEAST, color="k", linewidth=1, linestyle=":", label="minimum")
right.set(xlabel="round", ylabel="best value", yscale="log", xticks=range(0, ROUNDS + 1, 2))
right.legend()
figure.savefig("bayesian_optimisation.png", dpi=100)
