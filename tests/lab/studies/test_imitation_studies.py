"""The filtering studies: settings of the paper, rows as agreed, divergence as data, figures that draw what is there."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bieqno.assimilation as da
from bieqno.assimilation import EnKF
from bieqno.lab.methods import imitation
from bieqno.lab.methods.filters import fixed, no_assimilation
from bieqno.lab.methods.imitation import compare_on_paper, paper_cases
from bieqno.lab.papers import paper_lorenz63, paper_lorenz96
from bieqno.lab.report.filter_figures import filter_figures
from bieqno.lab.report.tables import study_tables
from bieqno.lab.studies import EXPERIMENTS, Result, super_filter, write_result
from bieqno.lab.studies.lorenz import INFLATIONS_63, LORENZ63, LORENZ96
from bieqno.lab.study import Run

KEY = jax.random.key(0)


def cases(paper):
    settings = replace(LORENZ63.presets["smoke"], windows=6, runs=2, teacher_runs=3, truths=2)
    record_key, truth_key = jax.random.split(KEY)
    return paper_cases(settings, paper, record_key=record_key, truth_key=truth_key, tune_key=KEY, key=KEY)


def test_presets_are_the_papers():
    for study, runs, members, pairs, largest in ((LORENZ63, 10, 50, 4_500, 16), (LORENZ96, 30, 100, 108_000, 64)):
        for preset in (study.presets["quick"], study.presets["paper"]):
            assert (preset.teacher_runs, preset.teacher_members) == (runs, members)
            variables = 3 if study is LORENZ63 else 24
            assert preset.teacher_runs * preset.training_windows * variables == pairs
            assert (preset.windows, preset.runs) == (200, 5)
            assert preset.truths >= 5
            assert (len(preset.sizes), min(preset.sizes), max(preset.sizes)) == (8, 2, largest)
    assert LORENZ63.presets["paper"].paper == {"epochs": 2000}  # on the ring as many as there is time for


def test_the_papers_protocol_has_one_record_and_ensembles_that_the_teacher_did_not_have():
    paper, made = paper_lorenz63(), cases(paper_lorenz63())
    tested = made["paper"](4).draw(0).trials
    assert made["paper"](4).draw(0).trials is tested  # all filters of a size share them
    training = paper.trials(6, runs=3, members=4, one_record=True, key=jax.random.split(KEY)[0])
    values = tested.twins.observations.value
    assert jnp.array_equal(values[0], values[1])
    assert jnp.array_equal(values[0], training.twins.observations.value[0])
    everyone = np.concatenate([np.asarray(training.ensembles), np.asarray(tested.ensembles)])
    assert len(np.unique(everyone[:, 0], axis=0)) == 5
    unseen = made["unseen"](4).draw(0).trials.twins.truth
    assert not jnp.allclose(unseen[0], unseen[1])


def test_the_papers_baseline_begins_where_the_paper_says():
    assert paper_lorenz63().ensemble(1, key=KEY).tolist() == [[-8.0, -9.0, 28.0]]
    # Its deviation from the truth is drawn on the ring, and is that of the ensembles' mean.
    ring = paper_lorenz96()
    many = ring.ensemble(2000, key=KEY)
    np.testing.assert_allclose(ring.ensemble(1, key=KEY)[0], many.mean(axis=0), atol=5 / np.sqrt(2000))  # five sigmas


def explode(ensemble, observed, *, key):
    """A filter that diverges at once."""
    return ensemble * 1e9


@pytest.fixture(scope="module")
def compared():
    """Rows and arrays of the ring, with a filter that diverges at once: figures must live with that."""
    methods = [
        (fixed("baseline", lambda: no_assimilation), (1,)),
        (fixed("EnKF", lambda: explode), (2,)),
        (fixed("EnNF", lambda: EnKF()), (2,)),
    ]
    rows, arrays = compare_on_paper(Run(), methods, cases(paper_lorenz96()))
    return Result("lorenz96", "smoke", 0, tuple(rows), arrays)


def test_rows_carry_size_protocol_and_divergence(compared, tmp_path):
    stored = compared.metrics()["rows"]
    assert {row["protocol"] for row in stored} == {"paper", "unseen"}
    lost = next(row for row in stored if row["method"] == "EnKF")
    assert lost == {
        "case": "N=2",
        "method": "EnKF",
        "metric": "relative_rmse",
        "value": None,
        "stderr": None,
        "n": 0,
        "ensemble_size": 2,
        "protocol": "paper",
        "diverged": 2,
    }
    sound = next(row for row in stored if row["method"] == "EnNF")
    assert (sound["n"], sound["diverged"]) == (2, 0)
    assert sound["stderr"] > 0


def test_arrays_keep_the_way_between_analyses(compared):
    data = compared.arrays["paper"]
    assert data.sizes["step"] == 20 * data.sizes["window"]
    entry = list(data["method"].values).index("EnNF")
    # The last step of each window is the analysis itself.
    np.testing.assert_array_equal(data["path"].values[entry, 19::20], data["mean"].values[entry, 0])
    np.testing.assert_allclose(data["true_path"].values[39::20], data["truth"].values[0, 1:], rtol=1e-3, atol=1e-3)
    assert np.isnan(data["mean"].values[list(data["method"].values).index("EnKF")]).all()


def test_figures_and_tables_live_with_divergence(compared, tmp_path):
    figures = filter_figures(compared)
    assert set(figures) == {"errors", "dynamics", "waves"}
    texts = [text.get_text() for axes in figures["waves"].axes for text in axes.texts]
    assert "diverged" in texts
    write_result(compared, tmp_path, figures)
    assert len(study_tables(compared)) == 2


def test_lorenz63_from_end_to_end():
    settings = replace(LORENZ63.presets["smoke"], sizes=(2,), tuned_sizes=(2,))
    result = LORENZ63.run(settings)
    methods = {row.method for row in result.rows if row.protocol == "unseen"}
    assert methods == {"baseline", "EnKF", "EnNF", "EnNF, paper", "EnKF tuned", "ETKF tuned", "particle filter"}
    assert all(np.isfinite(row.value) for row in result.select(method="EnNF"))
    assert result.value("training", "teacher", "runs_discarded") == 0
    assert result.value("training", "EnNF, paper", "epochs") == settings.paper["epochs"]
    # The winner of the tuning is told, and one of those that took part.
    found = result.value("N=2", "ETKF tuned", "inflation")
    assert found in INFLATIONS_63
    shown = set(zip(*(column.cells for column in study_tables(result)[-1].columns), strict=True))
    assert ("ETKF, tuned", "N=2", "inflation", f"{found:.3g}") in shown
    assert set(filter_figures(result)) == {"errors", "dynamics", "trajectories"}


def test_the_papers_form_alone_trains_and_tunes_nothing_else(monkeypatch):
    def never(*args, **settings):
        raise AssertionError("it was not asked for")

    monkeypatch.setattr(imitation, "imitate", never)
    monkeypatch.setattr(da, "tune", never)
    settings = replace(LORENZ96.presets["smoke"], sizes=(2,), tuned_sizes=(2,))
    result = LORENZ96.run(settings, only=["EnNF, paper"])
    assert {row.method for row in result.rows} == {"EnNF, paper", "teacher"}
    assert {row.protocol for row in result.rows if row.ensemble_size} == {"paper", "unseen"}
    told = {row.metric: row.value for row in result.select(case="training")}
    assert (told["epochs"], told["fine_tuning_epochs"]) == (2, 1)
    assert set(filter_figures(result)) == {"errors"}


@pytest.mark.long
def test_one_filter_in_four_roles():
    result = super_filter.EXPERIMENT.run("smoke")
    roles = {row.method for row in result.rows if row.metric == "share_of_typical"}
    assert roles == {f"{form} as {name}" for form in ("EnNF", "EnNF, paper") for name in super_filter.four_teachers()}
    assert result.value("training", "EnNF, paper", "epochs") == super_filter.PRESETS["smoke"].epochs
    typical = result.value("unseen", "teachers", "typical")
    gap = result.value("unseen", "EnNF as ETKF", "distance_to_teacher")
    assert result.value("unseen", "EnNF as ETKF", "share_of_typical") == pytest.approx(gap / typical)
    assert set(filter_figures(result)) == {"distances"}


@pytest.mark.long
def test_the_papers_form_of_four_roles_alone(monkeypatch):
    monkeypatch.setattr(super_filter.da, "LearnedGain", None)  # nothing else is trained
    result = super_filter.EXPERIMENT.run("smoke", only=["EnNF, paper"])
    roles = {row.method for row in result.rows if row.metric == "share_of_typical"}
    assert roles == {f"EnNF, paper as {name}" for name in super_filter.four_teachers()}


@pytest.mark.parametrize("name", ["lorenz63", "lorenz96", "super-filter", "ennf-options"])
def test_unknown_presets_are_refused(name):
    with pytest.raises(ValueError, match="smoke, quick, paper"):
        EXPERIMENTS[name].run("fast")
