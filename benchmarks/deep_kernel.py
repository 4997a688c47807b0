"""GPyTorch's deep kernel learning on the data sets of the two regression studies (needs the extra ``bench``).

A network maps the inputs to features, a Gaussian process with the squared-exponential kernel stands on those features,
and the marginal likelihood trains both (Wilson et al. 2016). It overfits when it trains for long, so the number of steps
is chosen on a held-out fifth of the data before the process is trained on all of them. Data sets and scores are those of
``bieqno run step-1d trig-2d`` with the same seed: the rows can be laid side by side.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import gpytorch
import numpy as np
import torch

from bieqno.lab.methods.regression import Prediction, Problem
from bieqno.lab.studies import step_1d, trig_2d, write_result

STEPS, CHECK_EVERY = 600, 50
FEATURES = 2


class DeepKernel(gpytorch.models.ExactGP):
    """The squared-exponential kernel on learned features."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-6))
        super().__init__(x, y, likelihood)
        self.likelihood.noise = 1e-2
        self.features = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], 64),
            torch.nn.SiLU(),
            torch.nn.Linear(64, 64),
            torch.nn.SiLU(),
            torch.nn.Linear(64, FEATURES),
        )
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=FEATURES))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at `x`."""
        features = self.features(x)
        return gpytorch.distributions.MultivariateNormal(self.mean(features), self.kernel(features))


def deep_kernel(problem: Problem, seed: int) -> Prediction:
    """Choose the number of steps on a held-out fifth, train on all, predict noisy new values."""
    shift, scale = problem.x.mean(0), problem.x.std(0)
    offset, size = problem.y.mean(), problem.y.std()
    x, y = torch.tensor((problem.x - shift) / scale), torch.tensor((problem.y - offset) / size)
    order = torch.tensor(np.random.default_rng(seed).permutation(len(x)))
    held, kept = order[: len(x) // 5], order[len(x) // 5 :]
    scores = {step: negative_log_density(model, x[held], y[held]) for step, model in training(x[kept], y[kept], seed)}
    steps = min(scores, key=lambda step: scores[step])
    model = next(model for step, model in training(x, y, seed) if step == steps)
    points = torch.tensor((problem.points - shift) / scale)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        # In pieces: the joint covariance of all test points would fill the memory.
        pieces = [model.likelihood(model(piece)) for piece in points.split(2048)]
        along_cut = model.likelihood(model(points[torch.tensor(problem.cut)]))
        mean = torch.cat([piece.mean for piece in pieces]).numpy()
        std = torch.cat([piece.stddev for piece in pieces]).numpy()
    return Prediction(mean * size + offset, std * size, along_cut.covariance_matrix.detach().numpy() * size**2)


def training(x: torch.Tensor, y: torch.Tensor, seed: int):
    """Train, and hand out the model ready to predict after every `CHECK_EVERY` steps."""
    torch.manual_seed(seed % 2**32)
    model = DeepKernel(x, y).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        model.train()
        optimizer.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):
            loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            yield step, model.eval()


def negative_log_density(model: DeepKernel, x: torch.Tensor, y: torch.Tensor) -> float:
    """Of single new values, the mean."""
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        predicted = model.likelihood(model(x))
        return -torch.distributions.Normal(predicted.mean, predicted.stddev).log_prob(y).mean().item()


def main() -> None:
    """Run both studies with deep kernel learning as the only method, and print its scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", choices=("quick", "paper"), default="quick", help="which data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/deep-kernel"))
    arguments = parser.parse_args()
    for module in (step_1d, trig_2d):
        settings = replace(module.PRESETS[arguments.preset], preset=f"deep-kernel-{arguments.preset}")
        study = partial(module.study, methods=lambda **_: {"deep-kernel": deep_kernel})
        result = replace(module.EXPERIMENT, study=study).run(settings, seed=arguments.seed)
        write_result(result, arguments.out)
        for case in result.arrays:
            of_case = {row.metric: row for row in result.select(case=case)}
            shown = ("rmse", "nlpd", "coverage_95", "seconds")
            scores = ", ".join(f"{name} {of_case[name].value:.3g} +- {of_case[name].stderr:.2g}" for name in shown)
            print(f"{result.experiment} {case}: {scores}", flush=True)


if __name__ == "__main__":
    main()
