"""Finished cases survive the run that made them, and serve no other."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno import compilation
from bieqno.assimilation import EnKF
from bieqno.lab.methods.filters import as_array, as_filter
from bieqno.lab.methods.regression import Prediction
from bieqno.lab.provenance import sources
from bieqno.lab.studies import EXPERIMENTS, Cases, demo, provenance, run_key, step_1d
from bieqno.lab.studies.lorenz import LORENZ63
from bieqno.lab.study import Progress, Run


def counted(calls):
    """The step study with methods that note each fit."""

    def method(problem, seed):
        calls.append(seed)
        n, k = len(problem.points), len(problem.cut)
        return Prediction(np.full(n, problem.y.mean()), np.full(n, 0.5), 0.25 * np.eye(k))

    methods = {"ggp": method, "gp-se": method}
    return replace(step_1d.EXPERIMENT, study=partial(step_1d.study, methods=lambda **_: methods))


def test_a_case_is_computed_once(tmp_path):
    cases = Cases.beside(tmp_path, "study", "key")
    first = cases.take("a/b, N=2", lambda: {"x": np.arange(3.0), "seconds": np.array(1.5)})
    again = Cases.beside(tmp_path, "study", "key")
    found = again.take("a/b, N=2", lambda: pytest.fail("computed again"))
    assert np.array_equal(found["x"], first["x"])
    assert float(found["seconds"]) == 1.5
    assert (again.finished(), again.taken) == (1, ["a/b, N=2"])
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_other_code_has_left_is_removed(tmp_path):
    known = provenance("step-1d", EXPERIMENTS["step-1d"].modules, step_1d.PRESETS["smoke"], 0)
    key, other_seed = run_key(known), run_key({**known, "seed": 1})
    outdated = run_key({**known, "code": "other"})
    names = [("step-1d", key), ("step-1d", other_seed), ("step-1d", outdated), ("step-1d", "older"), ("demo", outdated)]
    folders = {pair: Cases.beside(tmp_path, *pair) for pair in names}
    for cases in folders.values():
        cases.take("a", lambda: {"x": np.zeros(2)})
    Cases.remove_outdated(tmp_path, "step-1d", key)
    left = [pair for pair, cases in folders.items() if cases.folder.exists()]
    # Those of another seed can still be gone on with, those of another experiment are not its own.
    assert left == [("step-1d", key), ("step-1d", other_seed), ("demo", outdated)]


def test_names_of_parts_and_odd_names_do_not_meet(tmp_path):
    cases = Cases.beside(tmp_path, "demo", "key")
    for number, store in enumerate((cases, cases.within("a"), cases.within("b"))):
        store.take("../x", lambda number=number: {"x": np.array(number)})
    assert cases.finished() == 3
    assert int(cases.within("b").take("../x", dict)["x"]) == 2


def test_a_damaged_case_is_computed_again(tmp_path):
    cases = Cases.beside(tmp_path, "study", "key")
    cases.take("a", lambda: {"x": np.zeros(2)})
    (file,) = cases.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert cases.take("a", lambda: {"x": np.ones(2)})["x"].tolist() == [1, 1]


def test_a_resumed_study_gives_the_same_numbers(tmp_path):
    calls = []
    whole = counted(calls).run("smoke")
    cases = Cases.beside(tmp_path, "step-1d", "key")
    counted(calls).run("smoke", cases=cases, only=["ggp"])  # half of it
    calls.clear()
    resumed = counted(calls).run("smoke", cases=Cases(cases.folder))
    assert len(calls) == 2

    def numbers(result):
        return [(row.case, row.method, row.metric, row.value) for row in result.rows if row.metric != "seconds"]

    assert numbers(resumed) == numbers(whole)


def test_only_runs_the_methods_that_were_asked_for():
    result = counted([]).run("smoke", only=["ggp"])
    assert {row.method for row in result.rows} == {"ggp"}


def test_a_filter_comes_back_as_it_was():
    filter = EnKF(centred=False)
    assert as_filter(as_array(filter)) == filter


def test_the_key_knows_what_the_numbers_depend_on():
    settings = EXPERIMENTS["lorenz63"].presets["smoke"]
    known = provenance("lorenz63", LORENZ63.modules, settings, 0)
    others = [
        provenance("lorenz63", LORENZ63.modules, settings, 1),
        provenance("lorenz63", LORENZ63.modules, replace(settings, sizes=(2,)), 0),
        provenance("lorenz96", LORENZ63.modules, settings, 0),
        {**known, "code": "other"},
    ]
    keys = {run_key(config) for config in (known, *others)}
    assert len(keys) == 5
    assert run_key({**known, "platform": "another name for it"}) in keys
    assert known["settings"]["sizes"] == [2, 4]


def test_the_key_knows_the_source_that_a_study_reaches_and_no_other():
    chirp, lorenz = (sources(*EXPERIMENTS[name].modules) for name in ("chirp-1d", "lorenz63-truth"))
    assert "bieqno.lab.studies.other_functions" in chirp  # by an argument of the study
    assert not {name for name in chirp if name.startswith("bieqno.assimilation")}
    assert "bieqno.assimilation.filters.learned.local" in lorenz  # by the name that the package offers
    assert not {name for name in lorenz if name.startswith(("bieqno.regression", "bieqno.lab.report", "bieqno.cli"))}


def test_every_experiment_says_what_it_is():
    for experiment in EXPERIMENTS.values():
        about = experiment.description
        assert set(about.minutes) == set(experiment.presets)
        assert about.question.count(". ") + about.question.count("? ") in (1, 2), "two sentences, or three"


def test_the_demo_has_both_forms_of_the_paper_and_the_best_there_is():
    studies = demo.PRESETS["quick"].studies
    assert studies["step-1d"].pairs == step_1d.PRESETS["paper"].pairs  # as the paper has, so that nothing need be said
    assert not {"particle filter", "ggp-fine-tuned", "ggp-trained"} & set(demo.DESCRIPTION.methods)
    assert {"ggp-paper", "EnNF, paper", "EnNF", "LETKF tuned", "ETKF tuned"} <= set(demo.DESCRIPTION.methods)
    assert studies["mnmef"].sizes == studies["mnmef"].tuned_sizes == (5, 10, 20)


def test_the_demo_takes_its_cases_over(monkeypatch):
    """With a stub for the studies: names go before cases and data sets, and methods choose studies."""
    monkeypatch.setattr(demo, "_STUDIES", (counted([]),))
    told = []
    result = demo.EXPERIMENT.run("smoke", on_progress=told.append)
    assert set(result.parts()) == {"step-1d"}
    assert result.parts()["step-1d"].arrays.keys() == {"random-30", "random-100"}
    assert [p.part.split(",")[0] for p in told] == ["step-1d"] * 4
    assert demo.EXPERIMENT.run("smoke", only=["EnNF"]).rows == ()


def test_a_part_of_a_run_reports_its_share_of_the_whole():
    heard = []
    part = Run(on_progress=heard.append).between(0.5, 1.0, "second, ")
    part.progress("here", 1, 4)
    part.training("training")(Progress("", 0, 0, 0, step=5, steps=10, loss=0.1))
    assert [(p.part, p.done, p.total) for p in heard] == [("second, here", 0.625, 1.0), ("second, training", 0.75, 1.0)]
    assert (heard[1].step, heard[1].loss) == (5, 0.1)


def test_programs_are_forgotten_before_there_are_too_many(monkeypatch):
    traced = []

    @jax.jit
    def program(x):
        traced.append(x)
        return x + 1

    def compute():
        return {"x": np.asarray(program(jnp.ones(3)))}

    store = Cases()
    for name in ("first", "second"):
        store.take(name, compute)
    assert len(traced) == 1
    if Path("/proc/self/maps").exists():  # elsewhere there is no such limit
        monkeypatch.setattr(compilation, "MAPS", 0)
        for name in ("third", "fourth"):
            store.take(name, compute)
        assert len(traced) == 2
