"""Lorenz-96 with a trained filter: every fourth of 40 variables is observed, ten members.

The filter is trained against truths of the model for eight minutes, then compared with a tuned LETKF on truths that neither saw.

Run it with ``python examples/lorenz96.py`` (about ten minutes on two cores).
"""

# %% The system: a model, what is observed of it, and where its variables are
import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from bieqno.assimilation import (
    LETKF,
    AgainstTruth,
    Inflated,
    LocalEnNF,
    Lorenz96,
    Observation,
    Places,
    System,
    make_trials,
    run_trials,
    save_filter,
    train_filter,
    tune,
)
from bieqno.scores import rmse

MEMBERS = 10
system = System(
    Lorenz96(40, window=0.15, step=0.05),
    Observation(range(0, 40, 4), 1.0),
    state=jnp.full(40, 8.0),
    places=Places.grid(40, period=40.0),
)
keys = jax.random.split(jax.random.key(0), 5)

# %% Train a filter for it
student = LocalEnNF.untrained(system, key=keys[0])
trained = train_filter(student, system, AgainstTruth(sizes=(MEMBERS,)), budget="8 min", key=keys[1])
for size, (ours, base) in trained.errors.items():
    print(f"N = {size}: validation error {ours:.3f}, that of the tuned local transform it began as {base:.3f}")
save_filter("lorenz96.bieqno", trained.module)

# %% The opponent: an LETKF, tuned on truths of its own
near = system.neighbours(12.0)
found = tune(
    lambda inflation, radius: Inflated(LETKF(near, radius), inflation),
    {"inflation": [1.02, 1.05, 1.1, 1.15, 1.2, 1.3], "radius": [3.0, 4.0, 5.0, 6.0, 8.0, 11.0]},
    system,
    make_trials(system, 400, truths=16, members=MEMBERS, key=keys[2]),
    burn_in=100,
    rungs=2,
    key=keys[3],
)
tuned = Inflated(LETKF(near, found.best["radius"]), found.best["inflation"])

# %% Both on the same unseen truths, with the same observations; no setting was chosen on these
trials = make_trials(system, 400, truths=16, members=MEMBERS, key=jax.random.key(2026))
runs = {
    name: run_trials(one, system, trials, key=keys[4])
    for name, one in {"trained filter": trained.module, "LETKF, tuned": tuned}.items()
}
errors = {name: jax.vmap(rmse)(trials.twins.truth, run.kept["mean"]) for name, run in runs.items()}
for name, run in runs.items():
    lost = int(jnp.sum(run.diverged >= 0))
    print(f"{name}: RMSE {jnp.nanmean(errors[name][:, 100:]):.3f}, {lost} of {len(run.diverged)} runs diverged")

# %% Picture: one variable that is not observed, and the error over time
figure = Figure(figsize=(7.2, 4.6), layout="constrained")
upper, lower = figure.subplots(2, 1)
shown, colours = slice(100, 200), {"trained filter": "#0072b2", "LETKF, tuned": "#d55e00"}
time = 0.15 * jnp.arange(400)
upper.plot(time[shown], trials.twins.truth[0, shown, 2], "k", label="truth")
for name, run in runs.items():
    mean, std = run.kept["mean"][0, shown, 2], run.kept["spread"][0, shown, 2]
    upper.plot(time[shown], mean, color=colours[name], label=name)
    upper.fill_between(time[shown], mean - 2 * std, mean + 2 * std, color=colours[name], alpha=0.2)
    lower.plot(time, jnp.nanmean(errors[name], axis=0), color=colours[name], label=name)
upper.set(ylabel="variable 3, not observed")
lower.set(xlabel="time", ylabel="RMSE, 16 truths", ylim=(0, None))
upper.legend(ncols=3, fontsize=8)
figure.savefig("lorenz96.png", dpi=100)
