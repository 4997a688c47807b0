"""`bieqno list`, `run` and `report` as a user calls them, with studies that take no time."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import bieqno.lab.report.page
from bieqno.cli import main
from bieqno.cli.output import choose_reporter
from bieqno.lab.methods.regression import Prediction
from bieqno.lab.studies import EXPERIMENTS, Progress, read_result, step_1d

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
METHODS = ("ggp", "gp-se", "gp-matern12")


def fit(problem, seed):
    n, k = len(problem.points), len(problem.cut)
    return Prediction(np.full(n, problem.y.mean()), np.full(n, 0.5), 0.25 * np.eye(k))


def stub(method=fit):
    """The step study with methods that know nothing."""
    methods = dict.fromkeys(METHODS, method)
    return replace(step_1d.EXPERIMENT, study=partial(step_1d.study, methods=lambda **_: methods))


@pytest.fixture
def bieqno_command(monkeypatch, capsys, tmp_path):
    """The command in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "step-1d", stub())
    # Drawing takes seconds.
    monkeypatch.setattr(bieqno.lab.report.page, "study_figures", lambda result: {"line": Figure()})
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["bieqno", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return call


def test_list_shows_every_experiment(bieqno_command):
    code, out, _ = bieqno_command("list")
    assert code == 0
    for name in EXPERIMENTS:
        assert name in out
    assert "Claim:" in out
    assert f"{step_1d.DESCRIPTION.minutes['quick']:.0f} min" in out


def test_run_stores_everything_and_makes_the_page(bieqno_command, tmp_path):
    code, out, err = bieqno_command("run", "step-1d", "--preset", "smoke", "--seed", "3")
    assert code == 0
    assert "about 18 s" in out
    assert "NLPD" in out
    assert "The page is runs/report.html" in out
    assert "step-1d:   0%" in err  # not a terminal: a line, no bar
    assert "\x1b" not in out + err
    config = read_result(tmp_path / "runs" / "step-1d").config
    assert config["command"] == "bieqno run step-1d --preset smoke --seed 3"
    assert config["settings"]["pairs"] == 320
    assert {"jax", "numpy"} <= config["versions"].keys()
    assert config["wall_seconds"] >= 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["report.html", "step-1d"]
    page = (tmp_path / "runs" / "report.html").read_bytes()
    (tmp_path / "runs" / "report.html").unlink()
    assert bieqno_command("report", "runs")[:2] == (0, "The page is runs/report.html\n")
    assert (tmp_path / "runs" / "report.html").read_bytes() == page
    assert bieqno_command("report", "runs", "--keep", "kept")[:2] == (0, "The page is kept/index.html\n")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["index.html", "step-1d", "step-1d.json"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("step1d",), "did you mean 'step-1d'?"),
        (("Lorenz63",), "did you mean 'lorenz63'?"),
        (("step-1d", "--preset", "quik"), "did you mean 'quick'?"),
        (("demo", "--preset", "paper"), "no preset 'paper'; there are smoke, quick"),
        (("step-1d", "--only", "gpp"), "did you mean"),
        (("step-1d", "--seed", "-1"), "seed"),
        ((), "NAME"),
    ],
)
def test_wrong_usage_is_told_and_makes_nothing(bieqno_command, tmp_path, arguments, told):
    code, _, err = bieqno_command("run", *arguments)
    assert code == 2
    assert told in " ".join(err.replace("│", "").split())
    assert not (tmp_path / "runs").exists()


def test_methods_of_a_study_that_knows_none_cannot_be_run_one_by_one(bieqno_command, monkeypatch):
    joint = EXPERIMENTS["joint"]
    monkeypatch.setitem(EXPERIMENTS, "joint", replace(joint, description=replace(joint.description, methods=())))
    code, _, err = bieqno_command("run", "joint", "--only", "joint")
    assert code == 2
    assert "cannot be run one by one" in " ".join(err.replace("│", "").split())


def test_only_runs_one_method_where_it_is_known(bieqno_command, tmp_path):
    code, out, _ = bieqno_command("run", "step-1d", "super-filter", "--preset", "smoke", "--only", "ggp")
    assert code == 0
    assert "super-filter" not in out  # it has no such method
    assert {row.method for row in read_result(tmp_path / "runs" / "step-1d").rows} == {"ggp"}


def test_json_lines_are_all_that_is_said(bieqno_command):
    code, out, err = bieqno_command("run", "step-1d", "--preset", "smoke", "--log-json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [event["event"] for event in events] == ["start", *6 * ["progress"], "result", "found", "page"]
    assert events[1]["experiment"] == "step-1d"
    assert {"part", "done", "total", "seconds", "remaining", "step", "loss"} <= events[1].keys()


def test_the_time_to_go_does_not_count_the_part_that_compiled(capsys):
    """The first part takes a minute of compilation, and each of the nine others a second."""
    with choose_reporter(quiet=False, log_json=True).watch("lorenz63") as on_progress:
        for part, seconds in enumerate((0.0, 60.0, 61.0, 62.0)):
            on_progress(Progress("part", part, 10, seconds))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["remaining"] for event in events] == [None, None, 8.0, 7.0]


def test_a_loss_that_is_no_number_is_null_in_json_lines(capsys):
    with choose_reporter(quiet=False, log_json=True).watch("lorenz63") as on_progress:
        on_progress(Progress("training", 0.0, 1.0, 2.0, step=1, steps=2, loss=math.nan))
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["loss"] is None


def test_quiet_says_nothing(bieqno_command):
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--quiet") == (0, "", "")


def test_foreign_folders_are_refused(bieqno_command, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"")
    code, _, err = bieqno_command("run", "step-1d", "--preset", "smoke", "--out", "photos")
    assert code == 1
    assert err.startswith("bieqno: photos is not empty and holds no results of bieqno")
    assert "Traceback" not in err
    code, _, err = bieqno_command("run", "step-1d", "--preset", "smoke", "--out", "photos/cat.png")
    assert code == 1
    assert "is a file" in err
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--out", "photos/cat.png/runs")[0] == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "cat.png"]


def test_a_folder_in_the_way_is_refused(bieqno_command, tmp_path):
    assert bieqno_command("run", "step-1d", "--preset", "smoke")[0] == 0
    (tmp_path / "runs" / "step-1d").rename(tmp_path / "runs" / "kept")
    (tmp_path / "runs" / "step-1d").mkdir()
    code, _, err = bieqno_command("run", "step-1d", "--preset", "smoke")
    assert code == 1
    assert "in the way" in err


def test_a_full_disk_leaves_the_old_result_and_the_finished_cases(bieqno_command, tmp_path, monkeypatch):
    assert bieqno_command("run", "step-1d", "--preset", "smoke")[0] == 0
    old = (tmp_path / "runs" / "step-1d" / "metrics.json").read_bytes()

    def full(*args, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Figure, "savefig", full)
        code, _, err = bieqno_command("run", "step-1d", "--preset", "smoke", "--seed", "1")
    assert code == 1
    assert "No space left" in err
    assert "6 finished cases are kept" in err
    assert (tmp_path / "runs" / "step-1d" / "metrics.json").read_bytes() == old
    assert not list((tmp_path / "runs").glob("*.partial"))
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--seed", "1", "--resume")[0] == 0
    assert read_result(tmp_path / "runs" / "step-1d").config["cases_resumed"] == 6


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(bieqno_command, tmp_path, monkeypatch):
    calls = []

    def interrupted(problem, seed):
        calls.append(seed)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(problem, seed)

    with monkeypatch.context() as patched:
        patched.setitem(EXPERIMENTS, "step-1d", stub(interrupted))
        code, _, err = bieqno_command("run", "step-1d", "--preset", "smoke")
    assert code == 130
    assert "2 finished cases are kept" in err
    assert "bieqno run step-1d --preset smoke --resume" in err
    # Another seed is another run; what other code has left is of no use to any.
    (tmp_path / "runs" / ".step-1d.0123ab-0123456789ab.cases").mkdir()
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--seed", "1", "--resume")[0] == 0
    assert read_result(tmp_path / "runs" / "step-1d").config["cases_resumed"] == 0
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--resume")[0] == 0
    assert read_result(tmp_path / "runs" / "step-1d").config["cases_resumed"] == 2
    # What is finished as a whole is not run again.
    assert "finished already" in bieqno_command("run", "step-1d", "--preset", "smoke", "--resume")[1]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["report.html", "step-1d"]


KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from test_studies import EXPERIMENTS, fit, stub
from bieqno.cli import main
calls = []
def killed(problem, seed):
    calls.append(seed)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return fit(problem, seed)
EXPERIMENTS["step-1d"] = stub(killed)
sys.argv = ["bieqno", "run", "step-1d", "--preset", "smoke"]
main()
"""


def test_resume_goes_on_after_kill(bieqno_command, tmp_path):
    script = KILLED.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "runs" / "step-1d").exists()
    assert bieqno_command("run", "step-1d", "--preset", "smoke", "--resume")[0] == 0
    assert read_result(tmp_path / "runs" / "step-1d").config["cases_resumed"] == 4


def test_a_damaged_result_is_made_again(bieqno_command, tmp_path):
    assert bieqno_command("run", "step-1d", "--preset", "smoke")[0] == 0
    metrics = '{"experiment": "step-1d", "preset": "smoke", "seed": 1e999, "rows": []}'
    contents = [
        ("config.json", "{"),
        ("metrics.json", "[]"),
        ("metrics.json", "[" * 100_000),
        ("metrics.json", metrics),
    ]
    for name, content in (*contents, ("arrays.nc", "no netCDF")):
        (tmp_path / "runs" / "step-1d" / name).write_text(content)
        code, _, err = bieqno_command("report", "runs")
        assert (code, "step-1d is incomplete or damaged" in err, "Traceback" in err) == (1, True, False)
        code, out, _ = bieqno_command("run", "step-1d", "--preset", "smoke", "--resume")
        assert (code, "finished already" in out) == (0, False)


def test_the_command_that_is_kept_names_own_methods_only(bieqno_command, tmp_path, monkeypatch):
    other = replace(stub(), name="trig-2d", description=replace(step_1d.DESCRIPTION, methods=("gp-se",)))
    monkeypatch.setitem(EXPERIMENTS, "trig-2d", other)
    both = ("--only", "gp-se", "--only", "ggp")
    assert bieqno_command("run", "step-1d", "trig-2d", "--preset", "smoke", *both)[0] == 0
    command = read_result(tmp_path / "runs" / "trig-2d").config["command"]
    assert command == "bieqno run trig-2d --preset smoke --seed 0 --only gp-se"


def test_report_of_nothing_and_of_no_folder(bieqno_command, tmp_path):
    for folder in (".", "nowhere"):
        code, _, err = bieqno_command("report", folder)
        assert code == 1
        assert "there are no results" in err
        assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_it_happened(bieqno_command, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bieqno", "--debug", "report", "nowhere"])
    with pytest.raises(ValueError, match="there are no results"):
        main()
