"""What is kept of results: a smaller page, and numbers that say how they were made."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest
import synthetic
from matplotlib.figure import Figure

from bieqno.lab.report.kept import keep_results, read_kept
from bieqno.lab.results import Result, Row, write_result
from bieqno.lab.studies import EXPERIMENTS

CONFIG = {
    "command": "bieqno run lorenz63 --preset paper --seed 0",
    "started": "2026-11-17T12:02:06Z",
    "wall_seconds": 930.0,
    "commit": "d23dfdd185cb",
    "code": "a5d5e3ec5c4c",
    "versions": {"bieqno": "0.1.0", "jax": "0.9.2", "python": "3.11.7"},
    "platform": {"system": "Linux-6.1-build-of-somebody", "machine": "x86_64", "cores": 2},
    "cache": "/home/somebody/cache",
}
ROWS = (
    Row.of("N=2", "EnKF", "relative_rmse", [], ensemble_size=2, protocol="paper", diverged=3),
    Row.of("N=2", "EnNF", "relative_rmse", [0.1, 0.2], ensemble_size=2, protocol="paper", diverged=0),
)


def test_the_numbers_are_those_of_the_result_and_name_no_machine(tmp_path):
    write_result(Result("lorenz63", "paper", 0, ROWS, config=CONFIG), tmp_path / "runs")
    page = keep_results(tmp_path / "runs", tmp_path / "docs" / "results")
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "lorenz63.json"]
    text = (page.parent / "lorenz63.json").read_text()
    stored = json.loads(text)
    for name in ("command", "started", "wall_seconds", "commit", "code", "versions"):
        assert stored[name] == CONFIG[name]
    assert (stored["experiment"], stored["preset"], stored["seed"]) == ("lorenz63", "paper", 0)
    assert stored["rows"] == json.loads((tmp_path / "runs" / "lorenz63" / "metrics.json").read_text())["rows"]
    assert [(row["value"], row["diverged"]) for row in stored["rows"]] == [(None, 3), (pytest.approx(0.15), 0)]
    for words in (text, page.read_text()):
        assert "somebody" not in words
    # Which result, of which preset, made when and by which command.
    row = r'<th scope="row">lorenz63</th><td>paper</td><td>2026-11-17T12:02:06Z</td><td>15.5 min</td><td>.*Linux</td>'
    assert re.search(rf"{row}<td>{CONFIG['command']}</td>", page.read_text())


def test_figures_of_many_numbers_are_kept_as_images(tmp_path):
    result = replace(synthetic.trig(), config=CONFIG)
    write_result(result, tmp_path / "runs", {name: Figure() for name in ("maps", "reliability")})
    text = keep_results(tmp_path / "runs", tmp_path / "kept").read_text()
    assert 'id="trig-2d-trig-2d-reliability"' in text
    assert 'id="trig-2d-trig-2d-maps"' not in text
    assert "<figure><h4>" in text
    assert text.count("<img") == 2


def test_what_was_kept_earlier_stays(tmp_path):
    for name in ("lorenz63", "mnmef"):
        write_result(Result(name, "paper", 0, ROWS, config=CONFIG), tmp_path / name, {"error": Figure()})
        page = keep_results(tmp_path / name, tmp_path / "kept")
    page.unlink()
    assert 'id="mnmef"' in keep_results(page.parent, page.parent).read_text()  # written again from what is kept
    names = ["index.html", "lorenz63", "lorenz63.json", "mnmef", "mnmef.json"]
    assert sorted(path.name for path in page.parent.iterdir()) == names
    result, figures = read_kept(page.parent / "lorenz63.json")
    assert (result.rows[1], list(figures)) == (ROWS[1], ["error"])
    assert math.isnan(result.rows[0].value)
    for name in ("lorenz63", "mnmef"):
        assert f'<section id="{name}"' in page.read_text()
    assert page.read_text().count("data:image/png") >= 2


def test_methods_that_were_run_alone_join_the_others(tmp_path):
    write_result(Result("lorenz63", "paper", 0, ROWS, config=CONFIG), tmp_path / "runs", {"error": Figure()})
    kept = keep_results(tmp_path / "runs", tmp_path / "kept").parent
    again = (replace(ROWS[1], value=0.05), replace(ROWS[0], value=9.0))
    alone = {**CONFIG, "only": ["EnNF"], "command": "bieqno run lorenz63 --only EnNF", "code": "0123"}
    for _ in range(2):  # a second time changes nothing
        write_result(Result("lorenz63", "paper", 0, again, config=alone), tmp_path / "runs")
        page = keep_results(tmp_path / "runs", kept)
        result, figures = read_kept(kept / "lorenz63.json")
        assert math.isnan(result.rows[0].value)  # of the EnKF, which was not asked for
        assert (result.rows[1].value, len(result.rows), list(figures)) == (0.05, 2, ["error"])
        assert (result.config["command"], result.config["code"]) == (CONFIG["command"], CONFIG["code"])
        assert [(part["command"], part["code"]) for part in result.config["parts"]] == [(alone["command"], "0123")]
    assert f"{CONFIG['command']}; {alone['command']}" in page.read_text()
    for only, made in ((["EnKF", "EnNF"], "both"), (["EnNF"], "again")):
        both = {**CONFIG, "only": only, "command": made}
        write_result(Result("lorenz63", "paper", 0, again, config=both), tmp_path / "runs")
        keep_results(tmp_path / "runs", kept)
    parts = read_kept(kept / "lorenz63.json")[0].config["parts"]
    assert [(part["command"], part["only"]) for part in parts] == [("both", ["EnKF"]), ("again", ["EnNF"])]
    write_result(Result("lorenz63", "quick", 0, again, config=alone), tmp_path / "runs")
    with pytest.raises(ValueError, match="other settings"):
        keep_results(tmp_path / "runs", kept)


def test_figures_of_several_methods_take_the_place_of_those_of_one(tmp_path):
    def keep(only, figures):
        made = Result("lorenz63", "paper", 0, ROWS, config={**CONFIG, "only": only})
        write_result(made, tmp_path / "runs", figures)
        return read_kept(keep_results(tmp_path / "runs", tmp_path / "kept").parent / "lorenz63.json")[1]

    first = keep(["EnNF"], {"error": Figure(figsize=(1, 1))})
    second = keep(["EnNF", "EnKF"], {"error": Figure(figsize=(2, 1)), "orbit": Figure(figsize=(1, 1))})
    assert list(second) == ["error", "orbit"]
    assert second["error"] != first["error"]
    assert keep(["EnNF"], {"error": Figure(figsize=(3, 1))}) == second


def test_roles_of_a_method_join_with_it(tmp_path):
    both = tuple(Row.of("unseen", f"{form} as ETKF", "share_of_typical", [0.1]) for form in ("EnNF", "EnNF, paper"))
    write_result(Result("super-filter", "paper", 0, both, config=CONFIG), tmp_path / "runs")
    kept = keep_results(tmp_path / "runs", tmp_path / "kept").parent
    again = tuple(replace(row, value=0.5) for row in both)
    alone = {**CONFIG, "only": ["EnNF, paper"]}
    write_result(Result("super-filter", "paper", 0, again, config=alone), tmp_path / "runs")
    keep_results(tmp_path / "runs", kept)
    rows = read_kept(kept / "super-filter.json")[0].rows
    assert {row.method: row.value for row in rows} == {"EnNF as ETKF": 0.1, "EnNF, paper as ETKF": 0.5}


@pytest.mark.parametrize(("rungs", "joins"), [(1, True), (2, False)])
def test_settings_that_a_study_did_not_have_yet_were_at_their_defaults(tmp_path, rungs, joins):
    settings = json.loads(json.dumps(asdict(EXPERIMENTS["lorenz63"].presets["paper"])))
    earlier = {name: value for name, value in settings.items() if name != "rungs"}
    write_result(
        Result("lorenz63", "paper", 0, ROWS, config={**CONFIG, "settings": earlier}),
        tmp_path / "runs",
        {"error": Figure()},
    )
    kept = keep_results(tmp_path / "runs", tmp_path / "kept").parent
    alone = {**CONFIG, "only": ["EnNF"], "settings": {**settings, "rungs": rungs}}
    write_result(Result("lorenz63", "paper", 0, ROWS, config=alone), tmp_path / "runs")
    with nullcontext() if joins else pytest.raises(ValueError, match="other settings"):
        keep_results(tmp_path / "runs", kept)


def test_a_page_of_somebody_else_is_not_overwritten(tmp_path):
    write_result(Result("lorenz63", "paper", 0, ROWS, config=CONFIG), tmp_path / "runs")
    foreign = tmp_path / "site" / "index.html"
    foreign.parent.mkdir()
    foreign.write_text("<title>My own page</title>")
    with pytest.raises(ValueError, match="not a page of bieqno"):
        keep_results(tmp_path / "runs", foreign.parent)
    assert sorted(path.name for path in foreign.parent.iterdir()) == ["index.html"]
    assert foreign.read_text() == "<title>My own page</title>"


def test_results_are_not_kept_in_their_own_folder(tmp_path):
    """Their arrays and full figures would be removed."""
    write_result(Result("lorenz63", "paper", 0, ROWS, config=CONFIG), tmp_path)
    with pytest.raises(ValueError, match="keep them in another folder"):
        keep_results(tmp_path, tmp_path)
    assert (tmp_path / "lorenz63" / "metrics.json").exists()
