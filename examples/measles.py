"""Measles in London, 1950 to 1963: a stochastic SEIR model follows the weekly reports, by a particle filter and by an EnKF.

Nobody counted the susceptible: the filters infer them from reported cases. A forecast is scored by the probability that it gave
to the next week's count. Model and parameters are those of He, Ionides and King (2010); the record comes with the package.

Run it with ``python examples/measles.py`` (half a minute).
"""

# %% The record of a town, and the model with its published parameters
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bieqno.assimilation import EnKF, Inflated, Observations, ParticleFilter, Transformed, cycle, keep_scores
from bieqno.lab.records.measles import epidemic, town

london = town("London")
system = epidemic(london)  # the state: susceptible, exposed, infectious, and those who recovered in the week
cases = Observations.of(jnp.asarray(london.cases, float)[:, None])
inputs = {name: jnp.asarray(series, float) for name, series in london.inputs.items()}  # births, schools, population


# %% What is kept of each week: scores, the interval predicted for the cases, and how many are susceptible
def keep(prior, posterior, observed, *, key):
    """Draw counts at the members' forecasts for the interval."""
    drawn = observed.error.draw(observed.predict(prior), key=jax.random.fold_in(key, 7))
    low, high = jnp.quantile(drawn[:, 0], jnp.array([0.05, 0.95]))
    scores = keep_scores(prior, posterior, observed, key=key)
    return {**scores, "low": low, "high": high, "susceptible": posterior[:, 0].mean()}


# %% Two filters. A count is not normal: the EnKF works with the logarithm of the state and the square root of the cases.
filters = {
    "particle filter, N = 2000": (ParticleFilter(0.0), 2000),
    "EnKF, N = 100": (Transformed.by(Inflated(EnKF(), 1.02), ["log1p"] * system.size, "sqrt"), 100),
}
runs = {}
for name, (filter, members) in filters.items():
    start = jnp.tile(system.state, (members, 1))  # all begin at the published state; the model itself is random
    run = cycle(filter, system, start, cases, inputs=inputs, record=keep, key=jax.random.key(0))
    runs[name] = {key: np.asarray(series).reshape(len(london.cases)) for key, series in run.kept.items()}
    pit = runs[name]["pit"]
    print(f"{name}: log-likelihood {float(run.log_score):.1f} (published {london.published:.1f}), ", end="")
    print(f"90 % intervals hold {np.mean((pit > 0.05) & (pit < 0.95)):.0%} of {len(pit)} weeks")

# %% Picture: five years of reports with the interval predicted a week before, and the susceptible
dates = pd.to_datetime(list(london.dates))
shown = (dates >= "1954") & (dates < "1959")
figure = Figure(figsize=(7.2, 4.4), layout="constrained")
above, below = figure.subplots(2, 1, sharex=True)
few = runs["EnKF, N = 100"]
above.fill_between(
    dates[shown], few["low"][shown], few["high"][shown], color="#0072b2", alpha=0.3, label="EnKF, a week ahead: 90 %"
)
above.plot(dates[shown], london.cases[shown], "k.", markersize=3, label="reported")
above.set_ylabel("cases a week")
above.legend(fontsize=8)
for (name, kept), color in zip(runs.items(), ("#d55e00", "#0072b2"), strict=True):
    share = 100 * kept["susceptible"] / london.inputs["population"][:, -1]
    below.plot(dates[shown], share[shown], color=color, label=name)
below.set_ylabel("susceptible, %")
below.legend(fontsize=8)
figure.savefig("measles.png", dpi=100)
