"""Laws that are not Gaussian: they are distributions, the particle filter honours them, and no filter takes them for Gaussian."""

import catalogue
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import analyse
from scipy import stats

from bieqno.assimilation import (
    AffineLaw,
    Censored,
    EnKF,
    Floored,
    Inflated,
    IterativeEnKF,
    KeepScores,
    LogNormal,
    NegativeBinomial,
    NoisyModel,
    Observation,
    ParticleFilter,
    Poisson,
    RoundedCounts,
    StudentT,
    System,
    Transformed,
    calibration_band,
    cycle,
    forecast,
    keep_ensembles,
    keep_mean,
    keep_moments,
    keep_scores,
    simulate,
    summarise,
    to_dataset,
)
from bieqno.assimilation.filters.transformed import Coordinates, SeenLaw
from bieqno.assimilation.twin import Observations

LAWS = {
    "Poisson": Poisson(),
    "negative binomial": NegativeBinomial(2.0),
    "rounded": RoundedCounts(0.5, 0.1),
    "log-normal": LogNormal(0.5),
    "Student": StudentT(0.5),
    "censored": Censored(0.5, 1.0),
}
REFERENCES = {
    "Poisson": stats.poisson(3.0),
    "negative binomial": stats.nbinom(2.0, 2 / 5),
    "log-normal": stats.lognorm(0.5, scale=3.0),
    "Student": stats.t(4.0, 3.0, 0.5),
}
KEY = jax.random.key(0)


def window(law, members=5, missing=False):
    start = 1 + jax.random.uniform(KEY, (members, catalogue.SIZE))
    prior = forecast(catalogue.model(), start, key=KEY)
    value = jnp.array([3.0, 1.0, 2.0, jnp.nan if missing else 1.0])
    observation = Observation(lambda z: jnp.exp(z[:4]), law)
    return prior, observation.window(value, start=start)


@pytest.mark.parametrize("name", REFERENCES)
def test_densities_and_moments_are_those_of_scipy(name):
    law, known = LAWS[name], REFERENCES[name]
    value, predicted = jnp.array([1.0, 3.0, 7.0]), jnp.full(3, 3.0)
    density = known.logpmf(value) if law.counts else known.logpdf(value)
    assert np.allclose(law.log_prob(value, predicted), density, atol=1e-4)
    assert np.allclose(law.cdf(value, predicted), known.cdf(value), atol=1e-4)
    moments = [float(x[0, 0]) for x in law.moments(jnp.full((1, 1), 3.0))]
    assert np.allclose(moments, [known.mean(), known.var()], rtol=1e-4)


@pytest.mark.parametrize("name", LAWS)
def test_samples_follow_the_law(name):
    law = LAWS[name]
    drawn = law.draw(jnp.full((4000, 1), 6.0), key=KEY)[:, 0]
    mean, variance = (float(x[0, 0]) for x in law.moments(jnp.full((1, 1), 6.0)))
    assert abs(float(drawn.mean()) - mean) < 5 * (variance / 4000) ** 0.5
    assert abs(float(drawn.var()) / variance - 1) < 0.35  # Student's fourth moment is infinite
    low, high = law.below(drawn, jnp.full((1, 4000), 6.0), drawn)
    pit = low + jax.random.uniform(jax.random.key(1), low.shape) * (high - low)
    assert stats.kstest(np.asarray(pit).ravel(), "uniform").pvalue > 1e-3


def test_probabilities_of_rounded_counts_add_up_to_one_and_have_a_floor():
    law, counts = RoundedCounts(0.5, 0.1), jnp.arange(200.0)
    assert abs(float(jnp.sum(jnp.exp(law.log_prob(counts, jnp.full(200, 20.0))))) - 1) < 1e-4
    # Far out in either tail, and where nothing is expected.
    far = law.log_prob(jnp.array([0.0, 5000.0, 3.0]), jnp.array([800.0, 20.0, 0.0]))
    assert np.allclose(far, np.log(1e-18), atol=1e-3)
    known = stats.norm(20.0, (10 + 4) ** 0.5)
    assert np.isclose(
        law.log_prob(jnp.array(25.0), jnp.array(20.0)), np.log(np.diff(known.cdf([24.5, 25.5]))[0]), atol=1e-4
    )


def test_what_is_below_a_detection_limit_counts_by_its_probability():
    value, predicted = jnp.array([1.0, 2.0]), jnp.array([0.8, 0.8])
    known = [stats.norm(0.8, 0.5).logcdf(1.0), stats.norm(0.8, 0.5).logpdf(2.0)]
    assert np.allclose(LAWS["censored"].log_prob(value, predicted), known, atol=1e-5)


@pytest.mark.parametrize("error", [0.7, [[1.0, 0.6], [0.6, 2.0]]])
def test_a_gaussian_density_is_normalised_also_with_gaps(error):
    covariance = 0.49 * np.eye(2) if np.ndim(error) == 0 else np.array(error)
    observation = Observation([0, 1], jnp.asarray(error))
    member = jnp.array([[0.3, -0.2]])
    for value in ([1.0, 0.5], [1.0, np.nan], [np.nan, np.nan]):
        there = np.isfinite(value)
        known = 0.0
        if there.any():
            centre, own = np.asarray(member[0])[there], covariance[np.ix_(there, there)]
            known = stats.multivariate_normal(centre, own).logpdf(np.array(value)[there])
        assert np.allclose(observation.window(jnp.array(value)).log_prob(member), known, atol=1e-5)


@pytest.mark.parametrize("name", catalogue.FILTERS)
def test_every_filter_takes_every_law(name):
    filter = catalogue.FILTERS[name](4)
    for number, law in enumerate(LAWS.values()):
        prior, observed = window(law, members=(1, 5)[number % 2])
        found = eqx.filter_eval_shape(filter, prior, observed, key=KEY)
        assert (found.shape, found.dtype) == (prior.shape, prior.dtype)
    prior, observed = window(Poisson(), missing=True)
    posterior = analyse(filter, prior, observed, KEY)
    assert jnp.all(jnp.isfinite(posterior))
    assert not jnp.array_equal(posterior, prior)


def turn(state, inputs):
    """Rotates and damps for as long as the window is, and is pushed."""
    length, push = inputs
    return jnp.exp(-0.1 * length) * catalogue.model()(state) + push


@pytest.mark.long
@pytest.mark.parametrize("name", catalogue.FILTERS)
def test_every_filter_goes_through_driven_windows_of_unequal_length_with_every_law(name):
    """With gaps; one law after another with one member and with five."""
    filter = IterativeEnKF(turn) if name == "iterative" else catalogue.FILTERS[name](4)
    value = jnp.array([[3.0, 1.0, 2.0, 1.0], [1.0, 2.0, jnp.nan, 4.0], [2.0, jnp.nan, jnp.nan, 1.0]])
    inputs = (jnp.array([0.5, 2.0, 1.0]), jnp.full((3, catalogue.SIZE), 0.1))
    for number, law in enumerate([0.5, *LAWS.values()]):
        observation = Observation(lambda z: jnp.exp(0.2 * z[:4]), law)
        system = System(turn, observation, jnp.zeros(catalogue.SIZE), limit=1e3)
        start = jax.random.normal(KEY, ((1, 5)[number % 2], catalogue.SIZE))
        how = {"inputs": inputs, "record": KeepScores(filter, keep_moments), "key": KEY}
        run = cycle(filter, system, start, Observations.of(value), **how)
        assert run.diverged == -1
        assert all(jnp.all(jnp.isfinite(run.kept[kept])) for kept in ("mean", "spread", "log_score"))
        assert jnp.array_equal(jnp.isfinite(run.kept["pit"]), jnp.isfinite(value))


@pytest.mark.parametrize("name", LAWS)
def test_members_are_weighed_by_every_law(name):
    prior, observed = window(LAWS[name], missing=True)
    log_weights = observed.log_prob(prior)
    each = LAWS[name].log_prob(observed.value[:3], jnp.exp(prior[:, :3]))
    assert jnp.allclose(log_weights, jnp.sum(each, axis=1), rtol=1e-4)


def test_gaussian_errors_are_not_approximated():
    """What a filter does with them is what it did before there were other laws, to the bit."""
    observed = Observation([0], 0.5).window(jnp.array([1.0]))
    assert observed.gaussian(jnp.ones((3, 1))) is observed


def test_a_law_is_never_silently_gaussian():
    prior, observed = window(Poisson())
    with pytest.raises(TypeError, match="Poisson has no error covariance"):
        observed.whiten(prior[:, :4])
    with pytest.raises(TypeError, match="Poisson has no error covariance"):
        Floored(EnKF(), 0.1)(prior, observed, key=KEY)
    with pytest.raises(TypeError, match="only mean and variance are known"):
        Transformed.by(ParticleFilter(), ["same"] * catalogue.SIZE, "sqrt")(prior, observed, key=KEY)
    with pytest.raises(ValueError, match="size is positive"):
        NegativeBinomial(-1.0)


def walk():
    """A log-intensity that wanders, and counts of it."""
    return System(NoisyModel(lambda z: 0.9 * z, 0.4), Observation(jnp.exp, Poisson()), jnp.ones(1))


def exact_log_likelihood(counts):
    """By a grid of intensities."""
    grid = np.linspace(-5, 5, 801)
    step = grid[1] - grid[0]
    moves = stats.norm.pdf(grid[:, None], 0.9 * grid[None], 0.4) * step
    weight, total = stats.norm.pdf(grid, 0.9, 0.4) * step, 0.0
    for number, count in enumerate(counts):
        weight = moves @ weight if number else weight
        weight = weight * stats.poisson.pmf(count, np.exp(grid))
        total += np.log(weight.sum())
        weight /= weight.sum()
    return total, float(weight @ grid)


def test_the_particle_filter_estimates_the_likelihood_of_counts():
    system = walk()
    twin = simulate(system, 25, key=jax.random.key(3))
    run = cycle(ParticleFilter(0.0), system, jnp.ones((4000, 1)), twin.observations, record=keep_scores, key=KEY)
    total, mean = exact_log_likelihood(np.asarray(twin.observations.value[:, 0]))
    assert abs(float(run.log_score) - total) < 0.5
    assert abs(float(run.ensemble.mean()) - mean) < 0.05
    low, high = calibration_band(25, bins=2)
    assert low <= float(jnp.mean(run.kept["pit"] < 0.5)) <= high
    assert float(jnp.mean(run.kept["crps"])) < float(jnp.std(twin.observations.value))
    table = summarise(to_dataset(run), burn_in=5)
    assert (table["stage"].values.tolist(), table["score"].values.tolist()) == (
        ["forecast"],
        ["log_score", "crps", "coverage_90"],
    )
    mean = float(jnp.mean(run.kept["log_score"][5:]))
    assert abs(float(table["mean"].sel(stage="forecast", score="log_score")) - mean) < 1e-4


def test_scores_of_the_truth_and_of_the_observations_stand_side_by_side():
    twin = simulate(walk(), 12, key=KEY)
    record = KeepScores(EnKF(), keep_ensembles)
    run = cycle(EnKF(), walk(), jnp.linspace(0, 2, 8)[:, None], twin.observations, record=record, key=KEY)
    data = to_dataset(run, twin)
    table = summarise(data, burn_in=2)
    assert {"rmse", "predictive_log_score", "predictive_crps", "predictive_coverage_90"} <= set(table["score"].values)
    alone = summarise(data.drop_vars("truth"), burn_in=2).sel(stage="forecast", score="log_score")
    beside = table.sel(stage="forecast", score="predictive_log_score")
    for name in ("mean", "stderr", "low", "high"):
        assert float(beside[name]) == float(alone[name])
    assert np.isfinite(table["mean"].sel(score="rmse")).all()
    assert np.isnan(table["mean"].sel(stage="analysis", score="predictive_crps"))
    unseen = data.assign(pit=data["pit"].where(data["time"] < 6))  # three windows after the burn-in
    assert set(summarise(unseen, burn_in=2)["score"].values) == {
        name for name in table["score"].values if not name.startswith("predictive_")
    }


def test_scores_say_what_is_missing_and_need_their_record():
    system = walk()
    with pytest.raises(TypeError, match="keeps a dictionary, such as keep_moments"):
        KeepScores(EnKF(), keep_mean)(
            jnp.ones((3, 1)), jnp.ones((3, 1)), system.observation.window(jnp.ones(1)), key=KEY
        )
    gaps = Observations.of(jnp.array([[2.0], [jnp.nan], [1.0]]))
    run = cycle(EnKF(), system, jnp.ones((5, 1)), gaps, record=keep_scores, key=KEY)
    assert run.kept["log_score"][1] == 0
    assert jnp.isnan(run.kept["pit"][:, 0]).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="record=keep_scores"):
        assert cycle(EnKF(), system, jnp.ones((5, 1)), gaps, key=KEY).log_score


def test_transformed_analyses_stay_where_they_belong():
    prior = jax.random.uniform(KEY, (6, 3), minval=0.05, maxval=0.95)
    observed = Observation([0, 1, 2], 0.05).window(jnp.array([-2.0, 2.0, 0.5]))
    filter = Transformed.by(EnKF(), ["log", "logit", "same"])
    posterior = filter(prior, observed, key=KEY)
    assert jnp.all(posterior[:, 0] > 0)
    assert jnp.all((posterior[:, 1] > 0) & (posterior[:, 1] < 1))
    nothing = Observation([0, 1, 2], 0.05).window(jnp.full(3, jnp.nan))
    assert jnp.array_equal(filter(prior, nothing, key=KEY), prior)
    with pytest.raises(ValueError, match="coordinates are some of"):
        Transformed.by(EnKF(), ["cube"])


@pytest.mark.parametrize("name", ["log", "log1p", "sqrt", "softplus", "logit"])
def test_every_coordinate_comes_back_and_keeps_its_range(name):
    state = jnp.array([0.01, 0.3, 0.97])
    to, back = (Coordinates((name,) * 3, back=way) for way in (False, True))
    assert jnp.allclose(back(to(state)), state, rtol=1e-4)
    far = back(jnp.array([-30.0, 0.0, 9.0]))
    assert jnp.all(far >= 0)
    assert jnp.all(far <= 1) == (name == "logit")


def test_zeros_have_no_logarithm():
    """A member that is zero: no analysis, and no quiet one with a logarithm of -69. Roots take it."""
    observed = Observation([0], 0.1).window(jnp.array([0.5]))
    prior = jnp.array([[0.0], [0.4], [0.6]])
    assert jnp.all(jnp.isnan(Transformed.by(EnKF(), ["log"])(prior, observed, key=KEY)))
    assert jnp.all(jnp.isfinite(Transformed.by(EnKF(), ["sqrt"], "sqrt")(prior, observed, key=KEY)))
    system = System(lambda z: jnp.maximum(z - 0.3, 0), Observation([0], 0.1), jnp.ones(1))
    seen = Observations.of(jnp.array([[0.5], [0.2], [0.0]]))
    dry = cycle(Transformed.by(EnKF(), ["log"]), system, jnp.array([[0.5], [0.7], [0.9]]), seen, key=KEY)
    assert dry.diverged >= 0
    with pytest.raises(ValueError, match=r"1 observed values have no logarithm.* such as 0 in window 3"):
        cycle(Inflated(Transformed.by(EnKF(), ["same"], "log"), 1.1), system, jnp.ones((3, 1)), seen, key=KEY)


def test_values_that_a_law_does_not_have_are_refused():
    for law, value in ((LogNormal(0.1), 0.0), (Poisson(), -1.0)):
        system = System(lambda z: z, Observation([0], law), jnp.ones(1))
        gap, wrong = Observations.of(jnp.array([[jnp.nan], [2.0]])), Observations.of(jnp.array([[1.0], [value]]))
        assert cycle(EnKF(), system, jnp.ones((3, 1)), gap, key=KEY).diverged == -1
        with pytest.raises(ValueError, match=rf"cannot occur under {type(law).__name__}.* in window 2"):
            cycle(EnKF(), system, jnp.ones((3, 1)), wrong, key=KEY)


def test_of_logarithms_a_log_normal_law_has_exact_moments():
    """In any units; by quadrature over a normal distribution the variance of 0.25 came out as 13."""
    predicted = jnp.array([[1e-9, 1.0, 1000.0]])
    mean, variance = SeenLaw(LogNormal(0.5), "log").moments(predicted)
    np.testing.assert_allclose(mean, jnp.log(predicted), atol=1e-3)
    np.testing.assert_allclose(variance, 0.25, rtol=1e-3)


def test_scores_are_those_of_the_law_at_each_prediction():
    """Not at the observed value, where an error that grows with the value would be no density."""
    observed = Observation([0], AffineLaw(0.5, 0.1)).window(jnp.array([1.0]))
    prior = jnp.array([[5.0], [5.0]])
    kept = keep_scores(prior, prior, observed, key=jax.random.key(0))
    deviation = float(observed.error.std(jnp.array([5.0]))[0])
    assert float(kept["log_score"]) == pytest.approx(stats.norm(5, deviation).logpdf(1.0), rel=1e-4)
    assert float(kept["pit"][0]) == pytest.approx(stats.norm(5, deviation).cdf(1.0), abs=1e-5)


def test_numbers_far_from_one_keep_their_digits():
    assert float(Censored(0.01, 0.0).variance(jnp.array(500.0))) == pytest.approx(1e-4, rel=1e-3)
    for size in (50.0, 1e4, 1e7):
        found = float(NegativeBinomial(size).log_prob(jnp.array(100.0), jnp.array(90.0)))
        assert found == pytest.approx(stats.nbinom(size, size / (size + 90)).logpmf(100), abs=2e-3)
    small = LogNormal(0.5).log_prob(jnp.array(3e-9), jnp.array([1e-9, 3e-9, 9e-9]))
    assert int(jnp.argmax(small)) == 1
    assert float(small[1] - small[0]) > 1


def test_an_impossible_value_leaves_the_others_their_say():
    observed = Observation([0, 1], LogNormal(0.5)).window(jnp.array([0.0, 2.0]))
    weights = observed.log_weights(jnp.array([[1.0, 2.0], [1.0, 20.0]]))
    assert float(weights[0] - weights[1]) == pytest.approx(0.5 * (np.log(10) / 0.5) ** 2, rel=1e-2)


def test_laws_are_compiled_with_their_settings():
    for law in (StudentT(1.0), RoundedCounts(0.5, 0.1)):
        assert np.isfinite(jax.jit(lambda given: given.log_prob(jnp.array(1.0), jnp.array(2.0)))(law))
