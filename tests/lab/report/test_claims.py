"""Verdicts follow from the numbers, and from nothing else."""

import math
from dataclasses import replace

import pytest
import synthetic

from bieqno.lab.report.claims import CLAIMS, judge_all
from bieqno.lab.report.findings import FINEST_WAVE
from bieqno.lab.studies import Result, Row


def verdicts(*results):
    return {(one.claim.experiment, one.claim.text): one.finding.verdict for one in judge_all(results)}


def found(result, words):
    return next(
        one for one in judge_all([result]) if words in one.claim.text and one.claim.experiment == result.experiment
    )


def both(result, words):
    """The findings on the paper's form and on bieqno's."""
    judged = found(result, words)
    return judged.finding, judged.ours.finding


def changed(result, method, metric, change):
    rows = tuple(
        replace(row, value=change(row)) if (row.method, row.metric) == (method, metric) else row for row in result.rows
    )
    return replace(result, rows=rows)


def test_without_results_nothing_is_judged():
    judged = judge_all([])
    assert {one.finding.verdict for one in judged} == {"not run"}
    assert len(judged) == len(CLAIMS)
    assert judged[0].finding.number == "bieqno run step-1d"


def test_regression_is_judged_case_by_case():
    study = synthetic.step()
    paper, ours = both(study, "jumps better")
    assert (ours.verdict, paper.verdict) == ("reproduced", "not reproduced")
    assert (ours.tuned, paper.tuned) == ("not reproduced", "not reproduced")  # the best opponent is better than either
    assert "better in 0 of 4 comparisons" in paper.number
    assert "RMSE, 30 observations, random: 0.200 against 0.100 (best opponent: GP, Matérn-1/2, 0.010)" in paper.number
    worse = changed(study, "ggp", "rmse", lambda row: 9.0)
    assert both(worse, "jumps better")[1].verdict == "partly"  # the NLPD is still better
    worse = changed(worse, "ggp", "nlpd", lambda row: 9.0)
    assert both(worse, "jumps better")[1].verdict == "not reproduced"
    best = changed(study, "ggp-paper", "rmse", lambda row: 0.001)
    assert (both(best, "jumps better")[0].verdict, both(best, "jumps better")[0].tuned) == ("partly", "partly")


def test_the_verdict_on_a_claim_is_that_of_the_papers_form():
    """Also where bieqno's form was not run, and the other way round."""
    study = synthetic.step()
    alone = replace(study, rows=tuple(row for row in study.rows if row.method != "ggp"))
    assert [one.verdict for one in both(alone, "jumps better")] == ["not reproduced", "not run"]
    alone = replace(study, rows=tuple(row for row in study.rows if row.method != "ggp-paper"))
    paper, ours = both(alone, "jumps better")
    assert (paper.verdict, paper.number, ours.verdict) == (
        "not run",
        "there is no gGP, paper's form in random-30",
        "reproduced",
    )


def test_epochs_are_told_with_the_verdict_of_the_form_that_was_trained():
    study = synthetic.step()
    trained = [Row.of("random-30", "ggp-paper", *of) for of in (("epochs", [80.0, 120.0]), ("levelled", [1.0, 0.0]))]
    paper, ours = both(replace(study, rows=(*study.rows, *trained)), "jumps better")
    said = (
        "30 observations, random: trained for 100 epochs, mean of 2 data sets; its loss had levelled off in 50% of them"
    )
    assert said in paper.further
    assert not any("epochs" in line for line in ours.further)
    assert "trained for 200 epochs" in found(synthetic.filters("lorenz63", 3), "every").finding.further


def test_few_observations_are_compared_with_many():
    study = synthetic.step()
    few = changed(study, "ggp-paper", "rmse", lambda row: 0.02 if row.case.endswith("-30") else 0.09)
    assert found(few, "few observations").finding.verdict == "reproduced"
    assert found(few, "few observations").finding.tuned == "not reproduced"  # twice the error of the best opponent
    many = changed(study, "ggp-paper", "rmse", lambda row: 0.09 if row.case.endswith("-30") else 0.02)
    assert found(many, "few observations").finding.verdict == "not reproduced"


def test_who_misses_the_finest_wave_has_that_error():
    from bieqno.lab.methods.regression import grid
    from bieqno.lab.studies import trig_2d

    centres = (trig_2d.np.arange(256) + 0.5) / 256
    points = grid(centres, centres)
    inside = trig_2d.np.all((points >= 1 / 4) & (points <= 1 / 2), axis=1)
    wave = trig_2d.np.prod(trig_2d.np.sin(16 * trig_2d.np.pi * points), axis=1) * inside
    assert math.sqrt(float((wave**2).mean())) == pytest.approx(FINEST_WAVE, rel=1e-6)


def test_filters_are_judged_and_lost_runs_are_losses():
    study = synthetic.filters("lorenz63", 3)
    assert found(study, "two members").finding.verdict == "reproduced"
    assert (
        found(study, "every ensemble size").finding.verdict == "reproduced"
    )  # where all runs diverged there is no lower error
    assert found(study, "hardly depends").finding.verdict == "reproduced"
    assert found(study, "every ensemble size").finding.tuned == "reproduced"  # at the one size with a tuned opponent
    weak = synthetic.filters("lorenz63", 3, paper=0.7)
    assert found(weak, "two members").finding.verdict == "not reproduced"
    assert found(weak, "every ensemble size").finding.verdict == "partly"
    assert "N = 2 (0.735" in found(weak, "every ensemble size").finding.number
    assert both(weak, "two members")[1].verdict == "reproduced"  # bieqno's form has its own column
    assert both(weak, "two members")[0].tuned == "not reproduced"
    assert found(weak, "hardly depends").finding.tuned is None  # nobody else is judged


def diverging(result, method, *sizes, diverged):
    """The same result, with diverged runs of a method."""
    rows = [
        replace(row, diverged=diverged) if row.method == method and row.ensemble_size in sizes else row
        for row in result.rows
    ]
    return replace(result, rows=tuple(rows))


def test_a_mean_without_the_lost_runs_wins_nothing():
    study = diverging(synthetic.filters("lorenz63", 3), "EnNF, paper", 2, diverged=1)
    assert found(study, "every ensemble size").finding.verdict == "partly"
    assert "0.105 ± 0.005 (1 of 3 runs diverged) against" in found(study, "every ensemble size").finding.number
    assert found(study, "two members").finding.verdict == "not reproduced"
    assert found(study, "hardly depends").finding.verdict == "not reproduced"
    # One run of each diverged: the error of the others decides again, and says so.
    alike = diverging(study, "EnKF", 2, diverged=1)
    assert found(alike, "every ensemble size").finding.verdict == "reproduced"
    # A size at which all runs diverged is not left out of what is steady.
    gone = changed(study, "EnNF, paper", "relative_rmse", lambda row: math.nan if row.ensemble_size == 4 else 0.1)
    assert found(gone, "hardly depends").finding.verdict == "not reproduced"


def test_two_members_are_no_feat_where_enkf_works_too():
    assert found(synthetic.filters("lorenz63", 3, enkf=0.2), "two members").finding.verdict == "partly"


def test_nothing_to_judge_by_is_no_success():
    assert found(Result("super-filter", "quick", 0, ()), "series").finding.verdict == "not run"
    assert found(Result("step-1d", "quick", 0, ()), "jumps better").finding.verdict == "not run"


def test_the_result_that_can_tell_is_asked():
    whole = replace(synthetic.filters("lorenz63", 3), preset="quick")
    rows = tuple(replace(row, case=f"lorenz63/{row.case}") for row in whole.rows)
    demo = Result("demo", "quick", 0, rows)
    for poorer in (replace(whole, rows=whole.select(method="EnNF, paper")), replace(whole, preset="smoke")):
        judged = next(one for one in judge_all([poorer, demo]) if "every" in one.claim.text)
        assert (judged.source, judged.preset, judged.finding.verdict) == ("demo", "quick", "reproduced")


def test_the_super_filter_needs_every_role():
    rows = [
        Row.of("unseen", f"EnNF as {name}", "share_of_typical", [share]) for name, share in (("A", 0.1), ("B", 0.9))
    ]
    paper, ours = both(Result("super-filter", "smoke", 0, tuple(rows)), "series")
    assert (paper.verdict, ours.verdict) == ("not run", "partly")
    rows += [Row.of("unseen", f"EnNF, paper as {name}", "share_of_typical", [0.9]) for name in "AB"]
    paper, ours = both(Result("super-filter", "smoke", 0, tuple(rows)), "series")
    assert (paper.verdict, ours.verdict) == ("not reproduced", "partly")
    assert "A 0.90, B 0.90" in paper.number


def test_a_study_of_its_own_counts_before_the_demo():
    own = replace(synthetic.filters("lorenz63", 3), preset="quick")
    weak = synthetic.filters("lorenz63", 3, paper=0.7)
    rows = tuple(replace(row, case=f"lorenz63/{row.case}") for row in weak.rows)
    demo = Result("demo", "quick", 0, rows)
    judged = {one.claim.text: one for one in judge_all([demo, own]) if one.claim.experiment == "lorenz63"}
    assert {one.source for one in judged.values()} == {"lorenz63"}
    assert {one.source for one in judge_all([demo]) if one.claim.experiment == "lorenz63"} == {"demo"}


def test_a_run_of_one_method_is_not_judged():
    study = synthetic.filters("lorenz63", 3)
    alone = replace(study, rows=study.select(method="EnNF, paper"))
    assert found(alone, "two members").finding.verdict == "not run"
