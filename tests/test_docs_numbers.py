"""The marked numbers in README and docs are those of docs/results, and a digit that differs is found."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def load():
    spec = importlib.util.spec_from_file_location("check_numbers", ROOT / "docs" / "check_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numbers = load()


def test_the_numbers_of_the_documentation_are_those_of_the_results():
    assert not numbers.check(ROOT)


def test_the_results_that_are_kept_are_small_and_say_how_they_were_made():
    stored = sorted(RESULTS.glob("*.json"))
    assert stored
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 8e6
    page = (RESULTS / "index.html").read_text()
    for path in stored:
        about = json.loads(path.read_text())
        assert {"preset", "seed", "command", "started", "commit", "code", "versions"} <= about.keys(), path.name
        assert f"<td>{about['preset']}</td><td>{about['started']}</td>" in page
        assert '"/' not in path.read_text(), f"{path.name} names a path"


def row(method, metric, value, size=None, protocol=None, diverged=None, case="", n=5):
    about = {"ensemble_size": size, "protocol": protocol, "diverged": diverged} if size else {}
    return {
        "case": case or f"N={size}",
        "method": method,
        "metric": metric,
        "value": value,
        "stderr": None,
        "n": n,
        **about,
    }


STUDIES = {
    "lorenz63": [
        row("EnKF", "relative_rmse", 0.5, 10, "paper", 0),
        row("EnKF", "relative_rmse", None, 2, "paper", 5, n=0),
        row("EnNF", "relative_rmse", 0.0944, 2, "paper", 0),
        row("EnNF", "relative_rmse", 0.05, 10, "paper", 0),
        row("EnNF", "relative_rmse", 0.1266, 2, "unseen", 1, n=4),
        row("ETKF tuned", "relative_rmse", 0.0502, 10, "paper", 0),
    ],
    "step-1d": [
        row("ggp", "rmse", 0.137, case="random-30", n=10),
        row("ggp", "nlpd", -2.13, case="random-30", n=10),
        row("gp-se", "rmse", 0.131, case="random-30", n=10),
        row("limit", "rmse", 0.1, case="random-30", n=10),
    ],
}


@pytest.fixture
def write(tmp_path):
    """A project with two results; returns what is wrong with a README, or the README with all numbers in place."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    for name, rows in STUDIES.items():
        about = {"experiment": name, "preset": "paper", "seed": 0, "command": f"bieqno run {name} --preset paper"}
        content = json.dumps({**about, "started": "2026-11-17T12:02:06Z", "rows": rows})
        (tmp_path / "docs" / "results" / f"{name}.json").write_text(content)

    def call(text, **more):
        (tmp_path / "README.md").write_text(text)
        wrong = numbers.check(tmp_path, **more)
        return (tmp_path / "README.md").read_text() if more and not wrong else wrong

    return call


def marked(comment, content="\n"):
    return f"Before.\n\n<!-- numbers: {comment} -->{content}<!-- end -->\n\nAfter.\n"


def test_a_table_of_filters(write):
    text = write(marked("lorenz63 metric=relative_rmse protocol=paper"), write=True)
    assert text == marked(
        "lorenz63 metric=relative_rmse protocol=paper",
        """

| | N=2 | N=10 |
|---|---|---|
| EnKF | — (5) | 0.500 |
| EnNF | **0.094** | **0.050** |
| ETKF, tuned | — | **0.050** |

Means of 5 runs, in brackets the runs that were lost. Made by `bieqno run lorenz63 --preset paper` on 2026-11-17.

""",
    )
    assert write(text) == []
    assert write(text, write=True) == text


def test_a_table_of_regression_with_several_metrics_in_a_cell(write):
    text = write(marked("step-1d metric=nlpd|rmse method=gp-se|ggp|limit form=.1f"), write=True)
    assert "| | 30 observations, random |\n" in text
    assert "| GP, SE | — / **0.131** |\n| gGP | -2.1 / 0.137 |\n| oracle, levels known | — / 0.100 |\n" in text
    assert "Means of 10 data sets. Made by" in text


def test_fields_can_run_down_and_across(write):
    text = write(marked("lorenz63 metric=relative_rmse rows=protocol columns=method,N method=EnNF"), write=True)
    assert "| | EnNF, N=2 | EnNF, N=10 |\n" in text
    assert "| the paper's truth | 0.094 | 0.050 |\n| unseen truths | 0.127 (1) | — |\n" in text


SENTENCE = "It has <!-- number: lorenz63 metric=relative_rmse protocol=paper method=EnNF N=2 -->{}<!-- end --> here.\n"


def test_a_number_in_running_text(write):
    assert write(SENTENCE.format("?"), write=True) == SENTENCE.format("0.094")
    assert write(SENTENCE.format("0.094")) == []
    (wrong,) = write("\n\n" + SENTENCE.format("0.095"))
    for words in ("README.md:3: lorenz63 metric=relative_rmse", "-0.095", "+0.094"):
        assert words in wrong


def test_a_changed_digit_of_a_table_is_found_and_named(write):
    text = write(marked("lorenz63 metric=relative_rmse protocol=paper"), write=True)
    (wrong,) = write(text.replace("0.500", "0.501"))
    assert wrong.startswith("README.md:3: lorenz63 metric=relative_rmse protocol=paper\n")
    assert "  -| EnKF | — (5) | 0.501 |\n  +| EnKF | — (5) | 0.500 |" in wrong
    assert wrong.count("\n") == 4  # nothing else differs


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("lorenz69 metric=rmse", "there is no lorenz69.json"),
        ("lorenz63 protocol=paper", "a metric is missing"),
        ("lorenz63 metric=rmse", "no metric 'rmse'; there are relative_rmse"),
        ("lorenz63 metric=relative_rmse metod=EnNF", "did you mean 'method'?"),
        ("lorenz63 metric=relative_rmse rows=methods", "did you mean 'method'?"),
        ("lorenz63 metric=relative_rmse", "there are 2 numbers for EnNF, 2; choose by protocol"),
        ("lorenz63 metric=relative_rmse protocol=unseen N=10", "no number that is all of this"),
        ('lorenz63 metric="relative_rmse', "quotation"),
    ],
)
def test_wrong_comments_are_told_and_change_nothing(write, comment, told):
    (wrong,) = write(marked(comment))
    assert wrong.startswith(f"README.md:3: {comment}\n")
    assert told in wrong
    assert write(marked(comment), write=True) == [wrong]


def test_a_comment_without_end_is_told(write):
    text = "<!-- numbers: lorenz63 metric=relative_rmse protocol=paper -->\n\n" + SENTENCE.format("0.094")
    assert any("2 comments begin numbers and 1 end them" in wrong for wrong in write(text))
    assert any("no <!-- end --> before the next" in wrong for wrong in write(text))


def test_the_claims_of_the_paper_are_judged_by_the_results(write):
    text = write("<!-- claims --><!-- end -->\n", write=True)
    assert "| claim | study | the paper's form | bieqno's form |" in text
    assert text.count("not run") > 5
    assert write(text) == []
    (wrong,) = write(text.replace("not run", "reproduced", 1))
    assert wrong.startswith("README.md:1: claims\n")
