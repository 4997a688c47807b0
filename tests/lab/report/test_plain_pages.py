"""The pages of `bieqno evaluate` and `bieqno compare`: complete in one file, and what users wrote is text."""

import re

import chromium
import numpy as np
import pytest
import xarray as xr

from bieqno.lab.compare import Case, Outcome
from bieqno.lab.report import comparison_page, plain_pages, record_page
from bieqno.lab.report.page import build_page
from bieqno.lab.studies import Result, Row
from bieqno.lab.user_comparisons import Evaluation

EVIL = "<img src=x onerror=alert(1)> & $title"


def forecast(method, mean, std, likelihood=None):
    stated = {} if likelihood is None else {"score.log_marginal_likelihood": np.array(likelihood)}
    return Outcome(
        Case("table", lambda _: None),
        method,
        [{"mean": mean, "std": np.full(12, std), "tail": np.array(0.0), "score.seconds": np.array(0.5), **stated}],
    )


@pytest.fixture
def found():
    y = np.linspace(-1.0, 1.0, 12)
    near, far = (y + gap * np.cos(9 * y) for gap in (0.1, 0.5))
    made = forecast("ggp", near, 0.2), forecast("gp-se", far, 0.2, 2.0), forecast("gp-matern12", y, 0.1, 1.0)
    return Evaluation(y, {one.method: one for one in made}, 30)


def test_evaluation_names_the_chosen_process_and_marks_the_best(found):
    headings, rows, best = plain_pages.score_rows(found)
    assert headings[:4] == ["method", "RMSE", "NLPD", "CRPS"]
    assert [row[0] for row in rows] == ["gGP", "GP, SE *", "GP, Matérn-1/2"]
    assert best == [(2, 1), (2, 2), (2, 3)]
    assert "the CRPS of the gGP is lower by" in plain_pages.evaluation_verdict(found)


def test_evaluation_page_is_one_file_of_text(found):
    page = plain_pages.evaluation_page(found, source=EVIL, target=EVIL, inputs=[EVIL], command=EVIL)
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt; &amp; $title") >= 4
    assert page.count("</script>") == 3  # the figures, Plotly and the script
    assert page.count("<figure data-chart") == page.count('class="static"') == page.count('download="') == 2


def entry(method, members, errors, diverged=(-1, -1), **settings):
    lost = np.array(diverged)
    values = np.where(lost < 0, errors, np.nan)
    scores = {"score.rmse": values, "score.spread": 0.5 * values, "score.diverged": lost}
    scores |= {"score.predictive_log_score": -10 * values, "score.crps": values, "score.coverage_95": 0.9 + 0 * values}
    found = {f"setting.{name}": np.array(value) for name, value in settings.items()}
    case = Case(f"N={members}", lambda _: None, about={"ensemble_size": members, "protocol": "unseen"})
    return Outcome(case, method, [{"mean": np.zeros((2, 5, 3)), **scores, **found}])


@pytest.fixture
def entries():
    return [
        entry("EnNF", 4, [0.4, 0.6]),
        entry("EnKF tuned", 4, [0.1, 0.1], (-1, 3), inflation=1.05),
        entry("EnNF", 16, [0.4, 0.4], (2, 2)),
        entry("EnKF tuned", 16, [0.3, 0.3], (1, 1), inflation=1.1),
    ]


def test_comparison_prefers_filters_that_did_not_diverge(entries):
    headings, rows, best = comparison_page.comparison_rows(entries)
    assert headings == ["filter", "N = 4", "N = 16"]
    assert rows == [["EnNF", "0.500 ±0.100", "✕2"], ["EnKF, tuned", "0.100 ✕1", "✕2"]]
    assert best == [(0, 1)]
    assert (
        comparison_page.comparison_verdict(entries)
        == "Lowest error: EnNF (0.500) at N = 4, none (all diverged) at N = 16."
    )


def test_predictions_are_compared_at_the_same_ensemble_size(entries):
    few, many = comparison_page.prediction_tables(entries).values()
    assert few[0] == ["filter", "log score per window", "CRPS", "coverage of the 95 % interval"]
    assert [row[1] for row in few[1]] == ["-5.00 ±1.00", "-1.00 ✕1"]
    assert set(few[2]) == {(0, 1), (0, 2), (0, 3)}  # a filter that was lost is no winner
    assert [row[1:] for row in many[1]] == [["✕2"] * 3] * 2


@pytest.fixture
def arrays(entries):
    return xr.Dataset(
        {
            "truth": (("run", "time", "state"), np.ones((2, 5, 3))),
            "mean": (("entry", "run", "time", "state"), np.stack([one.kept[0]["mean"] for one in entries])),
            "pit": (("entry", "run", "time", "observation"), np.full((4, 2, 5, 1), 0.35)),
        },
        {
            "method": ("entry", [one.method for one in entries]),
            "members": ("entry", [one.case.about["ensemble_size"] for one in entries]),
            "time": np.arange(5.0),
        },
    )


def test_comparison_page_is_one_file_of_text(entries, arrays):
    page = comparison_page.comparison_page(entries, arrays, burn_in=1, command=EVIL, setup_text=EVIL)
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt; &amp; $title") == 2
    assert page.count("log score per window") == 2  # a table for each ensemble size
    for words in ("inflation 1.05", "0.50 ✕1", "-5.00 ±1.00", "without the first 1", "Calibration of the spread"):
        assert words in page
    assert page.count("<figure data-chart") == page.count('class="static"') == page.count('download="') == 3


def a_record_page(text):
    values, pit = np.sin(np.arange(40.0)), np.linspace(0.01, 0.99, 40)
    series = {"observed": values, "mean": values + 0.1, "spread": np.full(40, 0.2)}
    data = xr.Dataset({name: ("time", own) for name, own in series.items()}, {"time": np.arange(40.0)})
    kept = {"log_score": -values, "crps": values, "pit": pit}
    found = {"filter": kept, text: kept}
    return record_page.record_page(data, found, title=text, command=text, setup_text=text)


def a_report(text):
    rows = (
        Row.of("N=2", text, "relative_rmse", [0.5], ensemble_size=2, protocol="paper"),
        Row.of(text, text, text, [0.5]),
    )
    return build_page([(Result("lorenz63", text, 0, rows, config={"command": text, text: text}), {})])


@chromium.needed
@pytest.mark.parametrize("kind", ["evaluation", "comparison", "record", "report"])
def test_hostile_names_are_text_in_the_browser(browser, found, entries, arrays, kind, tmp_path):
    """Of columns, targets, files, methods and commands, on every kind of page, also where the policy allows all scripts."""
    act = "document.title='changed'"
    text = (
        f'</title></style>--></script><script>{act}</script><img src=x onerror="{act}"><b id=evil>\'<svg onload={act}>'
    )
    page = {
        "evaluation": lambda: plain_pages.evaluation_page(found, source=text, target=text, inputs=[text], command=text),
        "comparison": lambda: comparison_page.comparison_page(
            [entry("<b id=evil>X", 4, [0.2, 0.3]), *entries[1:]],
            arrays.assign_coords(method=("entry", ["<b id=evil>X", "EnKF tuned"] * 2)),
            burn_in=1,
            command=text,
            setup_text=text,
        ),
        "record": lambda: a_record_page(text),
        "report": lambda: a_report(text),
    }[kind]()
    policy = re.search(r'<meta http-equiv="?Content-Security-Policy"?[^>]*>', page)
    assert policy
    assert "default-src 'none'" in policy.group()
    for number, content in enumerate((page, page.replace(policy.group(), ""))):
        path = tmp_path / f"{number}.html"
        path.write_text(content, encoding="utf-8")
        browser.open(path, width=900, height=900, theme="light")
        for figure in browser.run("[...document.querySelectorAll('[data-chart]')].map(figure => figure.id)"):
            browser.run(f"document.getElementById('{figure}').scrollIntoView()")
            browser.wait(f"document.getElementById('{figure}').querySelector('.main-svg, canvas') !== null")
        assert browser.run("document.title") != "changed"
        assert browser.run("document.getElementById('evil')?.parentElement.outerHTML.slice(0, 300)") is None
        assert text.split("<b")[0] in browser.run("document.body.innerText + document.title")
        assert browser.requests() == [path.as_uri()]
        assert browser.complaints() == []
