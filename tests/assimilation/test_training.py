"""Training: it learns, repeats itself to the bit, continues after a stop, survives blow-ups, and keeps the best weights."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import (
    ETKF,
    AgainstTruth,
    Climate,
    EnKF,
    EnNF,
    HostModel,
    Imitation,
    LearnedGain,
    LocalEnNF,
    Lorenz63,
    Observation,
    System,
    Validation,
    cycle,
    make_trials,
    run_trials,
    simulate,
    teach,
    train_filter,
)
from bieqno.assimilation.objectives.against_truth import dawid_sebastiani, differentiable
from bieqno.assimilation.training import _base_errors, _never_worse
from bieqno.scores import relative_rmse
from bieqno.training import FitResult, trainable

SYSTEM = System(Lorenz63(window=0.25), Observation([0, 2], 1.0), jnp.array([-8.5, -7.0, 27.0]))
OBJECTIVE, STEPS = AgainstTruth(sizes={4: 16}, unroll=2), 300


def untrained(system=SYSTEM):
    return LocalEnNF.untrained(system, width=8, channels=2, key=jax.random.key(0))


@pytest.fixture(scope="module")
def trained():
    return train_filter(untrained(), SYSTEM, OBJECTIVE, steps=STEPS, key=jax.random.key(1))


def relative_error(filter):
    """On truths that no training saw."""
    trials = make_trials(SYSTEM, 100, truths=4, members=4, key=jax.random.key(9))
    found = run_trials(filter, SYSTEM, trials, key=jax.random.key(1))
    assert jnp.all(found.diverged < 0)
    return float(jnp.mean(jax.vmap(relative_rmse)(trials.twins.truth, found.kept["mean"])))


def test_it_learns(trained):
    """Against the tuned classical filter inside it."""
    ours, base = trained.errors[4]
    assert ours < base
    plain = trained.module.base(radius=3.0, inflation=1.1)
    error = relative_error(trained.module)
    # Without observations the relative error is about 0.7 here; a filter that lost the truth is not far below.
    assert error < 0.2
    assert error < relative_error(plain)
    assert trained.skipped == 0


def test_the_best_weights_are_kept_and_training_stops_early(trained):
    assert trained.validations.shape[0] <= 20
    good = np.flatnonzero(trained.validations < 1.02 * np.minimum.accumulate(trained.validations))
    assert trained.best_step == (1 + int(good[-1])) * (STEPS // 20)  # of those that are as good as the best the last
    # The same training with a patience of one ends at the first validation that is no improvement.
    found = trained.validations
    worse = [k for k in range(1, len(found)) if found[k] >= found[:k].min()]
    hasty = train_filter(
        untrained(), SYSTEM, OBJECTIVE, steps=STEPS, validate=Validation(patience=1), key=jax.random.key(1)
    )
    assert hasty.stopped_early == (worse[0] + 1 < 20)
    np.testing.assert_array_equal(hasty.validations, found[: worse[0] + 1])


def test_the_same_key_gives_the_same_bits_and_a_checkpoint_continues(tmp_path, trained):
    def train(**more):
        return train_filter(untrained(), SYSTEM, OBJECTIVE, steps=STEPS, key=jax.random.key(1), **more)

    def stop(progress):
        if progress.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(checkpoint=tmp_path, on_progress=stop)
    again = train(checkpoint=tmp_path)
    np.testing.assert_array_equal(trained.losses, again.losses)
    np.testing.assert_array_equal(trained.validations, again.validations)
    for a, b in zip(jax.tree.leaves(trained.module), jax.tree.leaves(again.module), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_training_has_steps_or_a_budget():
    with pytest.raises(ValueError, match='such as "5 min"'):
        train_filter(untrained(), SYSTEM, OBJECTIVE, key=jax.random.key(1))
    for wrong in ("soon", "-3 min", 0.0, "5 weeks"):
        with pytest.raises(ValueError, match='a budget is a time such as "5 min"'):
            train_filter(untrained(), SYSTEM, OBJECTIVE, budget=wrong, key=jax.random.key(1))


def test_units_extents_and_places_are_frozen(trained):
    """No optimizer is given them, so that weight decay cannot change them either."""
    begun = untrained()
    weights = trainable(begun)[0]
    for part in ("climate", "extent"):
        assert not jax.tree.leaves(getattr(weights, part))
    assert not jax.tree.leaves(weights.neighbourhoods)
    assert eqx.tree_equal(begun.neighbourhoods, trained.module.neighbourhoods)
    assert jnp.array_equal(begun.extent, trained.module.extent)
    shared = EnNF(2, width=4, depth=1, key=jax.random.key(0))
    assert jax.tree.leaves(trainable(shared)[0].operator)
    stacked = trainable(shared.stacked(3))[0]
    assert not jax.tree.leaves((stacked.operator, stacked.scaling))
    assert jax.tree.leaves(stacked.weights)


@pytest.mark.parametrize("objective", ["against truth", "imitation"])
@pytest.mark.parametrize("kind", [EnNF, LearnedGain])
def test_other_students_of_either_objective(kind, objective):
    student = kind(2, width=8, depth=1, key=jax.random.key(0))
    trials = make_trials(SYSTEM, 10, truths=2, members=4, key=jax.random.key(1))
    lessons = teach(EnKF(), SYSTEM, trials, lost=2.0, key=jax.random.key(2))
    student = lessons.standardise(student) if kind is EnNF else student
    wanted = (
        AgainstTruth(sizes={4: 4}, unroll=2) if objective == "against truth" else Imitation(lessons, (4,), members=16)
    )
    validate = Validation(truths=2, windows=6, burn_in=2, every=10)
    result = train_filter(student, SYSTEM, wanted, steps=20, validate=validate, key=jax.random.key(3))
    assert np.all(np.isfinite(result.losses))
    assert result.validations.shape == (2,)


def test_ensembles_that_blow_up_begin_anew_and_are_counted(monkeypatch):
    def explosive(z):
        """Chaotic within one, and off to infinity for a member that strays beyond."""
        return jnp.where(jnp.abs(z) <= 1, jnp.cos(3 * z), 1e3 * z)

    # Free runs begin beyond one, too.
    climate = Climate(jnp.linspace(-1, 1, 100)[:, None] * jnp.ones(2), jnp.zeros(2), jnp.full(2, 0.6))
    monkeypatch.setattr(Climate, "of", lambda *_, **__: climate)
    system = System(explosive, Observation([0], 0.1), jnp.zeros(2))
    objective = AgainstTruth(sizes={4: 16}, unroll=1)  # which compiles sooner
    result = train_filter(untrained(system), system, objective, steps=20, validate=None, key=jax.random.key(0))
    assert int(result.source_state[0].blown_up) > 0
    assert np.all(np.isfinite(result.losses))
    assert jnp.all(jnp.abs(result.source_state[0].truth) <= 1)


def test_the_score_of_the_spread_is_least_where_it_equals_the_error():
    """It is the logarithmic score of a normal distribution; padding and lost truths change nothing."""
    random = np.random.default_rng(0)
    anomalies = random.normal(size=(5, 30))
    anomalies -= anomalies.mean(axis=0)
    anomalies /= np.sqrt(np.mean(anomalies.var(axis=0, ddof=1)))
    present = jnp.arange(7) < 5

    def score(error, spread):
        wrong = jnp.concatenate([error + spread * anomalies, jnp.full((2, 30), jnp.nan)])
        return dawid_sebastiani(wrong, present)

    for spread in (0.5, 1.0, 2.0):
        difference = np.log(spread) + 0.5 * (0.7 / spread) ** 2 - np.log(0.7) - 0.5
        assert float(score(0.7, spread)) == pytest.approx(difference, abs=1e-4)
    by_error, by_spread = jax.grad(score, argnums=(0, 1))(0.7, 0.7)
    assert float(by_spread) == pytest.approx(0, abs=1e-3)
    assert float(by_error) == pytest.approx(1 / 0.7, rel=1e-3)  # a smaller error is better whatever the spread is
    assert jax.grad(score, argnums=(0, 1))(10.0, 1.0) == (0, 0)
    assert dawid_sebastiani(jnp.ones((1, 30)), jnp.array([True])) == 0


def test_missing_values_and_windows_to_differentiate_through():
    objective = AgainstTruth(sizes={4: 4}, missing=(0.2, 1.0), unroll=2)
    result = train_filter(untrained(), SYSTEM, objective, steps=2, validate=None, key=jax.random.key(0))
    assert np.all(np.isfinite(result.losses))
    assert result.skipped == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at least one ensemble size"):
        AgainstTruth(sizes={})
    with pytest.raises(ValueError, match=r"\(low, high\)"):
        AgainstTruth(missing=(0.5, 0.2))
    with pytest.raises(ValueError, match="unroll=0"):
        AgainstTruth(unroll=0)
    with pytest.raises(ValueError, match="windows beyond its burn-in"):
        Validation(windows=5, burn_in=5)
    for wrong in ({"every": 0}, {"patience": 0}, {"truths": 0}, {"windows": 0}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value}"):
            Validation(**wrong)
    for rate in (-1.0, 0.0, float("nan")):
        with pytest.raises(ValueError, match=f"learning_rate={rate}"):
            AgainstTruth(learning_rate=rate)
    with pytest.raises(ValueError, match="did not stay finite"):
        Climate.of(System(lambda z: 3 * z, Observation([0], 1.0), jnp.ones(2)), key=jax.random.key(0))
    with pytest.raises(ValueError, match="ETKF has no weights to train"):
        train_filter(ETKF(), SYSTEM, AgainstTruth(), steps=1, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"student": None}, "expected a filter, .*, got a NoneType as student"),
        ({"student": LocalEnNF}, "got the class LocalEnNF as student"),
        ({"system": Lorenz63()}, r"expected a System\(...\), got a Lorenz63 as system"),
        ({"objective": None}, r"such as AgainstTruth\(\), got a NoneType as objective"),
        ({"objective": Imitation}, "got the class Imitation as objective"),
        ({"objective": "truth"}, "got a str as objective"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(wrong, message):
    arguments = {"student": untrained(), "system": SYSTEM, "objective": OBJECTIVE} | wrong
    # As users call it: without this suite's own check of types.
    unchecked = inspect.unwrap(train_filter)
    with pytest.raises(TypeError, match=message):
        unchecked(**arguments, steps=1, key=jax.random.key(0))


def test_where_training_makes_it_worse_the_tuned_base_is_returned():
    """Weights thrown far off: the mean is moved by a thousand standard deviations of the climate, and cut to its extent."""
    far = eqx.tree_at(lambda f: f.correction.last.bias, untrained(), replace_fn=lambda bias: bias.at[3].set(1e4))
    empty = np.zeros(0, np.float32)
    wild = FitResult(far, empty, empty, 0, 0, False, None)
    settings = {3: {"radius": 2.0, "inflation": 1.1}}
    validate, key = Validation(truths=2, windows=40, burn_in=5), jax.random.key(2)
    errors = _base_errors(wild.module, validate, SYSTEM, settings, key)
    result = _never_worse(wild, validate, SYSTEM, settings, errors, key)
    assert set(result.errors) == {3}
    assert any(base < ours for ours, base in result.errors.values())
    for judged, (ours, base) in zip(result.module.judged, result.errors.values(), strict=True):
        prior = jax.random.normal(jax.random.key(3), (int(judged[0]), 3))
        observed = SYSTEM.observation.window(jnp.array([1.0, 20.0]))
        chosen = result.module(prior, observed, key=jax.random.key(4))
        assert (len(judged) == 3) == (base < ours)
        if base < ours:
            plain = result.module.base(*judged[1:])(prior, observed, key=jax.random.key(4))
            np.testing.assert_array_equal(chosen, plain)


def test_a_base_that_is_ahead_in_short_runs_only_is_not_taken():
    """On squared observations a base was ahead in 80 windows, and lost half of the runs of 600."""
    good, poor = {3: {"radius": 2.0, "inflation": 1.1}}, {3: {"radius": 2.0, "inflation": 0.01}}
    empty = np.zeros(0, np.float32)
    trained = FitResult(untrained().begin_with(good), empty, empty, 0, 0, False, None)
    validate, key = Validation(truths=2, windows=20, burn_in=5), jax.random.key(2)
    result = _never_worse(trained, validate, SYSTEM, poor, {3: 0.0}, key)
    ours, base = result.errors[3]
    assert 0 < ours < base
    assert result.module.judged == ((3.0,),)


def test_a_filter_that_fell_back_keeps_members_within_the_climate():
    filter = untrained().falling_back({3: {"radius": 2.0, "inflation": 1.1}})
    prior = 1e3 * jax.random.normal(jax.random.key(3), (3, 3))
    observed = SYSTEM.observation.window(jnp.array([1.0, 20.0]))
    moved = filter(prior, observed, key=jax.random.key(4))
    assert jnp.max(jnp.abs(moved)) < 150
    nothing = SYSTEM.observation.window(jnp.array([1.0, 20.0]), mask=jnp.zeros(2, bool))
    np.testing.assert_array_equal(filter(prior, nothing, key=jax.random.key(4)), prior)


def test_filters_that_learn_from_gaps_are_compared_with_their_base_on_gaps():
    """It was compared where all is observed, and fell back on a base that was tuned for that."""
    validate, settings, key = (
        Validation(truths=2, windows=40, burn_in=5),
        {3: {"radius": 2.0, "inflation": 1.1}},
        jax.random.key(2),
    )
    all_seen, hardly = (
        _base_errors(untrained(), validate, SYSTEM, settings, key, gaps)[3] for gaps in ((0.0, 0.0), (0.9, 0.9))
    )
    assert hardly > 2 * all_seen
    objective = AgainstTruth(sizes={3: 2}, unroll=1, missing=(0.9, 0.9))
    result = train_filter(untrained(), SYSTEM, objective, steps=1, validate=validate, key=key)
    assert result.errors[3][1] > 2 * all_seen


def test_sizes_share_a_shape_only_where_members_may_be_padding():
    sizes = {3: 5, 10: 4, 20: 3}
    padded = AgainstTruth(sizes).task(untrained(), SYSTEM, key=jax.random.key(0)).source_state
    assert [group.ensemble.shape for group in padded] == [(9, 10, 3), (3, 20, 3)]
    assert padded[0].present.sum(axis=1).tolist() == [3] * 5 + [10] * 4
    alone = AgainstTruth(sizes).task(EnNF(2, key=jax.random.key(0)), SYSTEM, key=jax.random.key(0))
    assert [group.ensemble.shape for group in alone.source_state] == [(5, 3, 3), (4, 10, 3), (3, 20, 3)]


def test_models_outside_jax_are_not_differentiated():
    host = HostModel(lambda ensemble: 0.9 * ensemble)
    outside = System(host, Observation([0], 1.0), jnp.ones(3))
    assert not differentiable(outside)
    assert differentiable(SYSTEM)
    student = untrained(outside)
    task = AgainstTruth({2: 2}).task(student, outside, key=jax.random.key(0))
    learned, fixed = trainable(student)

    def loss(learned):
        batch, key = task.source(jax.random.key(1), task.source_state), jax.random.key(2)
        return task.loss(eqx.combine(learned, fixed), batch, key=key)[0]

    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(learned)))
    assert task.loss.windows == 1


def test_a_filter_says_so_where_it_was_not_trained_for_the_system(trained, recwarn):
    start = jnp.array([-8.5, -7.0, 27.0]) + jax.random.normal(jax.random.key(0), (4, 3))

    def run(system):
        twin = simulate(system, 2, key=jax.random.key(0))
        return cycle(trained.module, system, start, twin.observations, key=jax.random.key(1))

    run(SYSTEM)
    jax.jit(lambda: run(SYSTEM).ensemble)()
    assert not recwarn.list
    wider = System(SYSTEM.model, Observation([0, 2], 2.0), SYSTEM.state)
    with pytest.warns(UserWarning, match=r"not trained for this system: errors of 2 instead of 1; train it anew"):
        run(wider)
    squared = System(SYSTEM.model, Observation(lambda z: z[::2] ** 2, 1.0), SYSTEM.state)
    with pytest.warns(UserWarning, match="another observation operator"):
        run(squared)


def test_a_filter_that_fell_back_is_trained_further_without_its_base():
    settings = {3: {"radius": 1.0, "inflation": 1.02}, 8: {"radius": 2.0, "inflation": 1.1}}
    fallen = untrained().begin_with(settings).falling_back(settings)
    free, again = fallen.without_fall_back([3, 5])
    assert again == {3: settings[3]}
    assert free.judged == ((8.0, 2.0, 1.1),)
    assert free.falling_back({3: {}}).judged == ((8.0, 2.0, 1.1), (3.0,))
