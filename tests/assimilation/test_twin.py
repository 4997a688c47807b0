"""The filtering loop, its records, divergence, tuning and datasets."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    ETKF,
    LETKF,
    Climate,
    EnKF,
    Inflated,
    Lorenz63,
    Lorenz96,
    Observation,
    Observations,
    Places,
    Shifted,
    System,
    cycle,
    keep_ensembles,
    keep_mean,
    keep_moments,
    keep_triples,
    load_dataset,
    make_trials,
    run_trials,
    save_dataset,
    simulate,
    summarise,
    sweep,
    to_dataset,
    tune,
    tuning_dataset,
)
from bieqno.assimilation import trials as trials_module
from bieqno.assimilation.streams import read_chunks
from bieqno.assimilation.trials import usable_cores
from bieqno.lab.report import plot_rank_histogram, plot_run, plot_spread_error
from bieqno.persistence.hdf5 import check_heaps
from bieqno.scores import rmse

KEY = jax.random.key(0)
MODEL = Lorenz63(window=0.1)
OBSERVATION = Observation([0, 2], 1.0)
STATE = jnp.array([-8.5, -7.0, 27.0])
SYSTEM = System(MODEL, OBSERVATION, STATE, limit=1e3)


@pytest.fixture(scope="module")
def twin():
    return simulate(SYSTEM, 30, key=KEY)


@pytest.fixture(scope="module")
def ensemble():
    return STATE + jax.random.normal(jax.random.key(1), (10, 3))


def test_a_vmapped_sweep_equals_single_runs(twin, ensemble):
    keys = jax.random.split(KEY, 3)

    def one(key):
        return cycle(EnKF(), SYSTEM, ensemble, twin.observations, record=keep_mean, key=key).kept

    # Rounding grows along a chaotic run, by less than a thousand over three time units.
    assert jnp.allclose(jax.vmap(one)(keys)[1], one(keys[1]), atol=1e-2)


def test_a_run_can_be_continued(twin, ensemble):
    whole = cycle(ETKF(), SYSTEM, ensemble, twin.observations, record=keep_mean, key=KEY)
    cut = lambda part: jax.tree.map(lambda x: x[part], twin.observations)  # noqa: E731
    first = cycle(ETKF(), SYSTEM, ensemble, cut(slice(15)), record=keep_mean, key=KEY)
    second = cycle(ETKF(), SYSTEM, first.ensemble, cut(slice(15, 30)), record=keep_mean, key=KEY)
    assert jnp.allclose(jnp.concatenate([first.kept, second.kept]), whole.kept, atol=1e-2)


def test_windows_of_a_continued_run_are_numbered_on(twin, ensemble):
    """A filter that perturbs draws what the whole run would have drawn, and not the same perturbations once more."""
    cut = lambda part: jax.tree.map(lambda x: x[part], twin.observations)  # noqa: E731
    whole = cycle(EnKF(), SYSTEM, ensemble, twin.observations, record=keep_triples, key=KEY).kept["perturbed"]
    first = cycle(EnKF(), SYSTEM, ensemble, cut(slice(15)), record=keep_mean, key=KEY)
    second = cycle(
        EnKF(), SYSTEM, first.ensemble, cut(slice(15, 30)), record=keep_triples, first_window=15, key=KEY
    ).kept["perturbed"]
    np.testing.assert_array_equal(second, whole[15:])


def test_trials_run_one_by_one_and_filters_of_one_kind_share_a_compilation(monkeypatch):
    trials = make_trials(SYSTEM, 5, truths=3, members=4, key=KEY)
    together = run_trials(EnKF(), SYSTEM, trials, record=keep_mean, key=KEY)
    for k in range(3):
        trial = jax.tree.map(lambda x: x[k], trials)  # noqa: B023
        alone = cycle(
            EnKF(), SYSTEM, trial.ensembles, trial.twins.observations, record=keep_mean, key=jax.random.fold_in(KEY, k)
        )
        np.testing.assert_array_equal(together.kept[k], alone.kept)
    calls = []

    class Counted(eqx.Module):
        factor: jax.Array

        def __call__(self, members, observed, *, key):
            calls.append(1)
            return members * self.factor

    for factor in (1.0, 0.9):
        run_trials(Counted(jnp.array(factor)), SYSTEM, trials, record=keep_mean, key=KEY)
    assert len(calls) == 1


def test_a_sweep_uses_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cores() == 2
    workers = []
    pool = trials_module.ThreadPoolExecutor
    monkeypatch.setattr(trials_module, "ThreadPoolExecutor", lambda count: workers.append(count) or pool(count))
    sweep(lambda trial: trial.ensembles, make_trials(SYSTEM, 1, truths=2, members=2, key=KEY))
    assert workers == [2]
    monkeypatch.delattr(os, "sched_getaffinity")  # as on other systems than Linux
    assert usable_cores() == 64


def test_what_does_not_describe_a_system_is_refused():
    with pytest.raises(ValueError, match=r"a vector \(n,\), got shape \(1, 3\)"):
        System(MODEL, OBSERVATION, STATE[None])
    with pytest.raises(ValueError, match="5 places are given for 3 variables"):
        System(MODEL, OBSERVATION, STATE, Places.grid(5))
    with pytest.raises(ValueError, match="1 places are given for 2 observations"):
        System(MODEL, OBSERVATION, STATE, observation_places=Places.apart(1))
    with pytest.raises(ValueError, match=r"one per variable, got shape \(2,\)"):
        System(MODEL, OBSERVATION, STATE, limit=jnp.ones(2))
    for wrong in (-1.0, 0.0, float("nan"), jnp.array([1.0, -1.0, 1.0])):
        with pytest.raises(ValueError, match=r"limit is (positive|a number), got"):
            System(MODEL, OBSERVATION, STATE, limit=wrong)
    with pytest.raises(ValueError, match="observation_places=Places"):
        System(MODEL, Observation(lambda z: z.mean()[None], 1.0), STATE, Places.grid(3)).neighbourhoods()
    everything_is_near = System(MODEL, Observation(lambda z: z[:1] ** 2, 1.0), STATE).neighbourhoods()
    assert everything_is_near.near.indices.shape == (3, 1)
    with pytest.raises(ValueError, match="components 0 to 7 of a state of 3"):
        System(MODEL, Observation([0, 7], 1.0), STATE)


@pytest.mark.parametrize("wrong", [{"truths": 0}, {"members": 0}, {"spin": -1}])
def test_impossible_trials_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        make_trials(SYSTEM, 2, **({"truths": 2, "members": 2} | wrong), key=KEY)


def test_truths_may_begin_without_spinning_up():
    trials = make_trials(SYSTEM, 2, truths=2, members=3, spin=0, disturbance=0.0, key=KEY)
    assert jnp.allclose(trials.twins.truth[:, 0], MODEL(STATE), rtol=1e-5)


def test_a_limit_may_be_one_per_variable(twin, ensemble):
    tight = System(MODEL, OBSERVATION, STATE, limit=[1e3, 1e3, 1.0])
    assert cycle(ETKF(), tight, ensemble, twin.observations, key=KEY).diverged.item() == 0
    assert jax.jit(lambda e: cycle(ETKF(), tight, e, twin.observations, key=KEY).diverged)(ensemble).item() == 0


def test_a_radius_beyond_the_neighbours_is_refused():
    ring = System(Lorenz96(8), Observation(range(8), 1.0), jnp.ones(8), Places.grid(8, period=8.0))
    near = ring.neighbours(2.0)
    for radius in (2.5, jnp.array(2.5), jnp.inf):
        with pytest.raises(ValueError, match="beyond that of the neighbours, 2"):
            LETKF(near, radius)
    LETKF(near, jnp.array(2.0))
    trials = make_trials(ring, 4, truths=1, members=3, key=KEY)
    with pytest.raises(ValueError, match="beyond that of the neighbours, 2"):
        tune(lambda radius: LETKF(near, radius), {"radius": [1.0, 3.0]}, ring, trials, burn_in=1, key=KEY)


def test_a_traced_radius_beyond_the_neighbours_counts_as_theirs():
    """Not a wider taper that is cut off at their radius."""
    ring = System(Lorenz96(8), Observation([0], 1.0), jnp.ones(8), Places.grid(8, period=8.0))
    prior = jax.random.normal(KEY, (4, 8))
    observed = ring.observation.window(jnp.array([2.0]))
    analyse = jax.jit(lambda radius: LETKF(ring.neighbours(2.5), radius)(prior, observed, key=KEY))
    assert jnp.array_equal(analyse(5.0), analyse(2.5))
    assert not jnp.array_equal(analyse(2.5), analyse(2.0))


def test_triples_hold_what_the_filter_saw(twin, ensemble):
    run = cycle(EnKF(centred=False), SYSTEM, ensemble, twin.observations, record=keep_triples, key=KEY).kept
    window = OBSERVATION.window(twin.observations.value[3], perturbed=run["perturbed"][3])
    again = EnKF(centred=False)(run["prior"][3], window, key=KEY)
    assert jnp.allclose(again, run["posterior"][3], atol=1e-4)
    assert jnp.array_equal(run["predicted"][3], run["prior"][3][:, jnp.array([0, 2])])
    # The same key shows another filter the same perturbed observations: comparisons are paired.
    other = cycle(ETKF(), SYSTEM, ensemble, twin.observations, record=keep_triples, key=KEY).kept
    assert jnp.array_equal(other["perturbed"], run["perturbed"])


def test_gaps_in_time_let_the_ensemble_run_free(twin, ensemble):
    mask = jnp.zeros((30, 2), bool)
    blind = Observations(twin.observations.value, mask, twin.observations.reference)
    run = cycle(ETKF(), SYSTEM, ensemble, blind, record=keep_ensembles, key=KEY).kept
    assert jnp.allclose(run["prior"], run["posterior"], atol=1e-4)


def test_divergence_is_data(twin, ensemble):
    """Four runs, of which a filter throws two out: one to infinity, one merely far away."""

    def filter(kind):
        def analyse(members, observed, *, key):
            hit = observed.start[0, 0] != ensemble[0, 0]  # not in the first window
            away = jnp.where(kind == 1, jnp.nan, jnp.where(kind == 2, 5e3, members))
            return jnp.where(hit, away, members)

        return analyse

    def one(kind):
        return cycle(filter(kind), SYSTEM, ensemble, twin.observations, key=KEY)

    runs = jax.vmap(one)(jnp.arange(4))
    assert runs.diverged.tolist() == [-1, 1, 1, -1]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(runs.kept))
    assert jnp.array_equal(runs.kept["mean"][0], runs.kept["mean"][3])
    data = to_dataset(jax.tree.map(lambda x: x[1], runs), twin, window=MODEL.window)
    assert data.attrs["diverged"] == 1
    assert data["sound"].values.tolist() == [1] + [0] * 29
    assert np.isnan(data["mean"].values[1:]).all()
    assert np.isfinite(data["mean"].values[0]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda twin, e: cycle(ETKF(), System(MODEL, Observation([0], 1.0), STATE), e, twin.observations, key=KEY),
            "1 values are observed, but the series has 2",
        ),
        (
            lambda twin, e: cycle(lambda x, o, *, key: x[:2], SYSTEM, e, twin.observations, key=KEY),
            r"keeps the shape \(10, 3\), got \(2, 3\)",
        ),
        (
            lambda twin, e: cycle(ETKF(), SYSTEM, e[:0], twin.observations, key=KEY),
            r"an ensemble \(N, 3\) of at least one member, got shape \(0, 3\)",
        ),
        (
            lambda twin, e: OBSERVATION.window(jnp.zeros(2), reference=jnp.zeros(3)),
            r"reference has shape \(3,\), the observed values \(2,\)",
        ),
        (
            lambda twin, e: simulate(SYSTEM, 3, mask=jnp.ones((2, 2), bool), key=KEY),
            r"mask has shape \(2, 2\), the observations \(3, 2\)",
        ),
    ],
)
def test_mismatched_sizes_are_named(twin, ensemble, call, message):
    with pytest.raises(ValueError, match=message):
        call(twin, ensemble)


def test_dataset_makes_the_round_trip_and_the_figures(twin, ensemble, tmp_path):
    run = cycle(Inflated(ETKF(), 1.02), SYSTEM, ensemble, twin.observations, record=keep_ensembles, key=KEY)
    data = to_dataset(run, twin, window=MODEL.window, attributes={"filter": "ETKF"})
    assert dict(data.sizes) == {"time": 30, "member": 10, "state": 3, "observation": 2}
    again = load_dataset(save_dataset(data, tmp_path / "new" / "run.nc"))
    assert again.identical(data)
    table = summarise(again, burn_in=5)
    errors = rmse(twin.truth, run.kept["posterior"].mean(axis=1))[5:]
    analysis = table.sel(stage="analysis", score="rmse")
    assert float(analysis["mean"]) == pytest.approx(float(errors.mean()), rel=1e-5)
    assert float(analysis["low"]) < float(analysis["mean"]) < float(analysis["high"])
    assert bool(np.isfinite(table["mean"]).all())
    with pytest.raises(ValueError, match="4 sound windows, 2 are left after a burn-in of 28"):
        summarise(again, burn_in=28)
    for name, figure in {
        "run": plot_run(again, observed=[0, 2]),
        "ranks": plot_rank_histogram(again, burn_in=5),
        "spread": plot_spread_error(again, burn_in=5),
    }.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    with pytest.raises(ValueError, match="no sound window is left after a burn-in of 99 of 30"):
        plot_rank_histogram(again, burn_in=99)
    with pytest.raises(ValueError, match="record that keeps a dictionary"):
        to_dataset(cycle(ETKF(), SYSTEM, ensemble, twin.observations, record=keep_mean, key=KEY))


def test_a_record_of_ones_own_and_gaps_reach_the_dataset(twin, ensemble):
    def keep(prior, posterior, observed, *, key):
        return {"third": jnp.mean(posterior**3, axis=0), "observed": observed.value, "mask": observed.mask}

    mask = jnp.arange(60).reshape(30, 2) % 3 > 0
    gaps = Observations(twin.observations.value, mask, twin.observations.reference)
    data = to_dataset(cycle(ETKF(), SYSTEM, ensemble, gaps, record=keep, key=KEY))
    assert data["third"].dims == ("time", "third_1")
    assert np.array_equal(np.isfinite(data["observed"].values), np.asarray(mask))


@pytest.mark.parametrize("members", [1, 2])
def test_figures_of_the_smallest_ensembles_and_of_moments(twin, ensemble, members):
    for record in (keep_ensembles, keep_moments):
        run = cycle(ETKF(), SYSTEM, ensemble[:members], twin.observations, record=record, key=KEY)
        data = to_dataset(run, twin)
        assert len(plot_run(data).axes) == 3
        assert len(plot_spread_error(data).axes) == 2
    with pytest.raises(ValueError, match=r"some of the 3 variables, from 0, got \[7\]"):
        plot_run(data, variables=[7])
    with pytest.raises(ValueError, match="each of the 2 observations, got 3"):
        plot_run(data, observed=[0, 1, 2])


def test_tuning_finds_the_optimum_and_handles_divergence(tmp_path):
    trials = make_trials(SYSTEM, 60, truths=2, members=6, key=KEY)
    heard = []
    found = tune(
        lambda inflation, unused: Inflated(ETKF(), inflation + 0 * unused),
        {"inflation": [0.2, 1.05, 1e4], "unused": [1.0, 2.0]},
        SYSTEM,
        trials,
        burn_in=10,
        rungs=2,
        keep=0.5,
        chunk=4,
        progress=lambda done, total: heard.append((done, total)),
        key=KEY,
    )
    # Deflation loses the truth and monstrous inflation leaves the climatology: the middle is the only sane one.
    assert found.best["inflation"] == pytest.approx(1.05)
    surface = tuning_dataset(found)
    assert surface["diverged"].sel(inflation=1e4).values.tolist() == [1.0, 1.0]
    assert float(surface["score"].min()) == pytest.approx(found.score)
    stored = load_dataset(save_dataset(surface, tmp_path / "surface.nc"))
    assert stored.attrs["best_inflation"] == found.best["inflation"]
    assert stored.attrs["best_score"] == found.score
    assert heard == [(3, 6), (6, 6), (3, 3)]
    assert sorted(np.unique(surface["windows"])) == [30, 60]
    with pytest.raises(ValueError, match="no more than the burn-in of 59"):
        tune(lambda i: ETKF(), {"i": [1.0]}, SYSTEM, trials, burn_in=59, rungs=2, key=KEY)
    with pytest.raises(ValueError, match="burn_in=-3"):
        tune(lambda i: ETKF(), {"i": [1.0]}, SYSTEM, trials, burn_in=-3, key=KEY)


def test_a_network_says_what_is_observed_in_each_window():
    """The same for a simulation, for trials and for training: a new offset each time."""
    system = System(Lorenz96(12), Observation(range(12), 1.0), jnp.full(12, 8.0), network=Shifted(12, 3))
    seen = np.asarray(simulate(system, 40, key=jax.random.key(0)).observations.mask)
    assert (seen.sum(axis=1) == 3).all()
    assert {tuple(np.flatnonzero(row)) for row in seen} == {(k, k + 4, k + 8) for k in range(4)}
    trials = make_trials(system, 6, truths=2, members=3, spin=1, key=jax.random.key(0))
    first, second = np.asarray(trials.twins.observations.mask)
    assert (first != second).any()
    assert system.present(5, key=jax.random.key(0)).shape == (5, 12)
    with pytest.raises(ValueError, match=r"each of 2 values whether it is there, got bool \(12,\)"):
        System(Lorenz96(12), Observation([0, 1], 1.0), jnp.full(12, 8.0), network=Shifted(12, 3))
    with pytest.raises(ValueError, match="count=13"):
        Shifted(12, 13)


def test_members_may_be_states_of_the_climate():
    system = System(Lorenz96(8), Observation([0], 1.0), jnp.full(8, 8.0))
    climate = Climate.of(system, key=jax.random.key(1))
    trials = make_trials(system, 2, truths=2, members=4, spin=1, climate=climate, key=jax.random.key(0))
    states = {row.tobytes() for row in np.asarray(climate.states)}
    members = {row.tobytes() for row in np.asarray(trials.ensembles).reshape(8, 8)}
    assert members <= states
    with pytest.raises(ValueError, match="4000 members need as many states"):
        make_trials(system, 2, truths=1, members=4000, spin=1, climate=climate, key=jax.random.key(0))


# The reader fails once more when its half-open file is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_dataset_is_one_error_of_one_line(tmp_path):
    """Bytes changed all over the file: what is read is whole, or the error says that the file is damaged."""
    twin = simulate(SYSTEM, 5, key=KEY)
    run = cycle(ETKF(), SYSTEM, jax.random.normal(KEY, (4, 3)) + twin.truth[0], twin.observations, key=KEY)
    save_dataset(to_dataset(run, twin), tmp_path / "run.nc")
    content = (tmp_path / "run.nc").read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 20):
            damaged[place] = rng.integers(256)
        (tmp_path / "damaged.nc").write_bytes(damaged)
        try:
            load_dataset(tmp_path / "damaged.nc")
        except ValueError as error:
            refused += 1
            assert "is damaged or no netCDF file" in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    assert refused
    with pytest.raises(FileNotFoundError):
        load_dataset(tmp_path / "missing.nc")


def test_a_heap_with_an_entry_of_no_length_is_refused(tmp_path):
    """On such a file HDF5 itself does not come back, and Ctrl-C does not reach Python."""
    twin = simulate(SYSTEM, 5, key=KEY)
    run = cycle(ETKF(), SYSTEM, jax.random.normal(KEY, (4, 3)) + twin.truth[0], twin.observations, key=KEY)
    save_dataset(to_dataset(run, twin), tmp_path / "run.nc")
    content = bytearray((tmp_path / "run.nc").read_bytes())
    check_heaps(tmp_path / "run.nc")
    entry = end = content.index(b"GCOL") + 16
    while content[entry : entry + 2] != bytes(2):  # up to what is free
        entry += 16 + -(-int.from_bytes(content[entry + 8 : entry + 16], "little") // 8) * 8
    assert entry > end
    for length in (
        0,
        int.from_bytes(content[entry + 8 : entry + 16], "little") - 512,
    ):  # the rest is zero, and so free, too
        content[entry + 8 : entry + 16] = length.to_bytes(8, "little")
        (tmp_path / "damaged.nc").write_bytes(content)
        for read in (load_dataset, lambda path: next(read_chunks(path))):
            with pytest.raises(ValueError, match="global heap has an entry of no length"):
                read(tmp_path / "damaged.nc")
