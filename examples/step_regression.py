"""A step, regressed from thirty noisy observations: the pre-trained regressor beside a tuned Gaussian process.

No network is trained here: the regressor was trained on random functions before. The first call compiles; later ones take well
below a second.

Run it with ``python examples/step_regression.py`` (half a minute).
"""

# %% Data: a jump between two levels, observed at random places with a small error
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from bieqno import PretrainedGGPRegressor

random = np.random.default_rng(0)


def step(x: np.ndarray) -> np.ndarray:
    """Two levels."""
    return np.where(x < 0.45, -1.0, 1.0)


X = random.uniform(size=(30, 1))
y = step(X[:, 0]) + 0.05 * random.normal(size=30)
grid = np.linspace(0, 1, 400)[:, None]
new = step(grid[:, 0]) + 0.05 * random.normal(size=400)

# %% Two models: nothing to choose, and a Matern kernel whose parameters maximise the marginal likelihood from ten starts
kernel = ConstantKernel() * Matern(0.3, (0.01, 10), nu=0.5) + WhiteKernel(0.01, (1e-5, 1))
models = {
    "PretrainedGGPRegressor": PretrainedGGPRegressor(),
    "Gaussian process, Matern-1/2": GaussianProcessRegressor(kernel, n_restarts_optimizer=9, random_state=0),
}
predicted = {name: model.fit(X, y).predict(grid, return_std=True) for name, model in models.items()}

# %% How well new noisy values are predicted: lower is better for both
for name, (mean, std) in predicted.items():
    error = np.sqrt(np.mean((mean - step(grid[:, 0])) ** 2))
    print(f"{name}: RMSE {error:.3f}, negative log density {-norm.logpdf(new, mean, std).mean():.2f}")

# %% Picture
figure = Figure(figsize=(7.2, 2.8), layout="constrained")
for axes, (name, (mean, std)) in zip(figure.subplots(1, 2, sharey=True), predicted.items(), strict=True):
    axes.fill_between(
        grid[:, 0], mean - 1.96 * std, mean + 1.96 * std, color="#0072b2", alpha=0.25, label="95 % interval"
    )
    axes.plot(grid[:, 0], mean, color="#0072b2", label="mean")
    axes.plot(X[:, 0], y, "k.", markersize=4, label="observations")
    axes.set_title(name, fontsize=9)
    axes.set_xlabel("x")
axes.legend(fontsize=8, loc="lower right")
figure.savefig("step_regression.png", dpi=100)
