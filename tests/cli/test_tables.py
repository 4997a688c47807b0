import json
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bieqno.cli.table_files import pick, read_table, training_columns, write_table
from bieqno.regression import GGPRegressor, PretrainedGGPRegressor, load_regressor
from bieqno.regression.frames import FrameEncoder

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
QUICK = ("--trained", "--steps", 20, "--members", 1)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Numbers, a column of text, and three rows with a gap."""
    random = np.random.default_rng(0)
    a, b = random.uniform(-1, 1, (2, 30))
    frame = pd.DataFrame({"a": a, "town": "Ulm", "b": b, "y": a + b, "z": 10 * a})
    frame.loc[0, "a"] = np.nan
    frame.loc[1, "y"] = np.nan
    frame.loc[2, "b"] = np.inf
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def model(bieqno, table):
    path = table.with_name("model.bieqno")
    done = bieqno("fit", table, "--target", "y", "--inputs", "a,b", "--out", path, *QUICK)
    assert done.code == 0, done.err
    assert "fitted y from a, b on 29 rows: a generalized Gaussian process, 20 training steps" in done.out
    assert "no rows were held out" in done.out
    assert "1 of 30 rows" in done.err
    assert "2 of 29 rows" in done.err
    assert "(y: 1)" in done.err
    assert "(a: 1, b: 1)" in done.err
    return path


def test_predictions_find_their_columns_by_name(bieqno, table, model, tmp_path):
    frame = pd.read_csv(table)
    frame[["z", "b", "town", "a"]].to_csv(tmp_path / "new.csv", index=False)
    done = bieqno("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv", "--samples", 3)
    assert done.code == 0, done.err
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found.columns[:4]) == ["z", "b", "town", "a"]
    assert list(found.columns[4:]) == ["mean", "sd", "q0.05", "q0.5", "q0.95", "sample_1", "sample_2", "sample_3"]
    assert found["mean"].notna().all()  # what is missing in rows 0 and 2 was missing in the fit, too
    kept = found.replace(np.inf, np.nan)
    mean, std = GGPRegressor.load(model).predict(kept[["a", "b"]], return_std=True)
    np.testing.assert_allclose(kept["mean"], mean, rtol=1e-5)
    # The quantile of a normal distribution at 0.95 is 1.645 deviations above its mean.
    np.testing.assert_allclose(kept["q0.95"] - kept["mean"], 1.6448536 * std, rtol=1e-4)
    assert (kept["sample_1"] != kept["sample_2"]).all()


def test_a_value_that_is_missing_in_new_rows_only_widens_the_prediction(bieqno, table, tmp_path):
    whole = pd.read_csv(table).drop(index=[0, 1, 2])
    whole.to_csv(tmp_path / "whole.csv", index=False)
    done = bieqno("fit", tmp_path / "whole.csv", "--target", "y", "--inputs", "a,b", "--out", tmp_path / "m.bieqno")
    assert done.code == 0, done.err
    (tmp_path / "new.csv").write_text("a,b\n0.3,0.2\n0.3,\n")
    done = bieqno("predict", tmp_path / "m.bieqno", tmp_path / "new.csv", "--out", tmp_path / "o.csv", "--samples", 20)
    assert done.code == 0, done.err
    known, open_ = pd.read_csv(tmp_path / "o.csv").to_dict("records")
    assert open_["sd"] > 5 * known["sd"]
    assert open_["q0.95"] - open_["q0.05"] > 5 * (known["q0.95"] - known["q0.05"])
    samples = [[row[f"sample_{i + 1}"] for i in range(20)] for row in (known, open_)]
    assert np.std(samples[1]) > 3 * np.std(samples[0])


def test_excel_files_are_read_and_written(tmp_path):
    pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"a": [1.5, np.nan, 3.0], "kind": ["x", "y", "x"], "n": [1, 2, 3]})
    write_table(tmp_path / "t.xlsx", frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.xlsx"), frame, check_dtype=False)
    pd.DataFrame([["a", "a"], [1, 2]]).to_excel(tmp_path / "twice.xlsx", header=False, index=False)
    with pytest.raises(ValueError, match="more than one column called 'a'"):
        read_table(tmp_path / "twice.xlsx")
    (tmp_path / "no.xlsx").write_text("a,b")
    with pytest.raises(ValueError, match="as an Excel table"):
        read_table(tmp_path / "no.xlsx")


def test_several_targets_keep_their_names(bieqno, table, tmp_path):
    done = bieqno("fit", table, "--target", "y,z", "--inputs", "a,b", "--out", tmp_path / "m.bieqno")
    assert done.code == 0, done.err
    assert [line.split()[:2] for line in done.out.splitlines()[-3:-1]] == [["y", "29"], ["z", "29"]]  # the summary
    assert "29 rows: " in done.out
    assert "Gaussian process" in done.out or "local experts" in done.out  # a linear function of two inputs
    fitted = load_regressor(tmp_path / "m.bieqno")
    assert isinstance(fitted, PretrainedGGPRegressor)
    assert fitted.target_names_.tolist() == ["y", "z"]
    done = bieqno("predict", tmp_path / "m.bieqno", table, "--out", tmp_path / "out.csv", "--quantiles", "0.5")
    assert done.code == 0, done.err
    assert list(pd.read_csv(tmp_path / "out.csv").columns[5:]) == [
        "y_mean",
        "y_sd",
        "y_q0.5",
        "z_mean",
        "z_sd",
        "z_q0.5",
    ]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("a,y\n1,2\n", ("--target", "yy"), "no column 'yy'; did you mean 'y'?"),
        ("", ("--target", "y"), "is empty"),
        ("a,y\n", ("--target", "y"), "no rows"),
        ("a,a,y\n1,2,3\n", ("--target", "y"), "more than one column called 'a'"),
        ("a,y\n1,2\n2,x\n", ("--target", "y"), "column 'y' of"),
        ("a,y\n1,2\n2,x\n", ("--target", "y"), "'x' in row 2"),
        ("a,y\nUlm,2\n", ("--target", "y"), "no column of numbers left"),
        ("a,y\n1,2\n", ("--target", "y", "--inputs", "a,y"), "cannot be among the inputs"),
        ("a,y\n,2\n1,\n", ("--target", "y"), "'a' of"),
        ("a,b,y\n1,,2\n2,,3\n3,,4\n", ("--target", "y", "--inputs", "a,b"), "'b' of"),
        ("a,y\n1,\n2,\n", ("--target", "y"), "every row of"),
        ("a,y\n1,2\n2,3\n", ("--target", "y"), "minimum of 3"),
        ("a,y\n1,2,3\n1,2,3\n", ("--target", "y"), "do all rows have 2 values?"),
        ("a,y\n1,2\n2,2\n3,2\n", ("--target", "y"), "nothing to predict"),
        ("a, a,y\n1,2,3\n", ("--target", "y"), "more than one column called 'a'"),
    ],
)
def test_wrong_tables_are_one_clear_line(bieqno, tmp_path, content, arguments, said):
    (tmp_path / "table.csv").write_text(content)
    done = bieqno("fit", tmp_path / "table.csv", *arguments, "--out", tmp_path / "model.bieqno")
    assert done.code == 1
    assert said in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_an_empty_column_is_left_out_with_a_warning(bieqno, tmp_path):
    rows = [f"{number},,{number % 3}" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,y", *rows]))
    done = bieqno("fit", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "model.bieqno")
    assert done.code == 0, done.err
    assert "column 'b' of" in done.err
    assert "is empty and is left out" in done.err
    assert load_regressor(tmp_path / "model.bieqno").feature_names_in_.tolist() == ["a"]


@pytest.mark.parametrize(
    ("content", "inputs", "names"),
    [
        ("a, b , y\n1, 2, 3\n", "a,b", ["a", "b"]),  # space about the names
        ('"a;b;c",y\n1,2\n', "a;b;c", ["a;b;c"]),  # another separator within a name
        ('"a, of b";c;y\n1;2;3\n', '"a, of b",c', ["a, of b", "c"]),  # a comma within a name
        ("a\tb\ty\n1\t\t3\n", "b,a", ["b", "a"]),  # a gap between tabs
        ("<b>&amp;</b>,y\n1,2\n", "<b>&amp;</b>", ["<b>&amp;</b>"]),
    ],
)
def test_odd_names_are_found(tmp_path, content, inputs, names):
    (tmp_path / "table.csv").write_text(content)
    frame = read_table(tmp_path / "table.csv")
    assert list(frame.columns[-1:]) == ["y"]
    assert pick(inputs, list(frame.columns), tmp_path / "table.csv") == names
    assert all(kind.kind in "if" for kind in frame.dtypes)


def test_what_is_read_is_not_overwritten(bieqno, table, model):
    before = table.read_bytes(), model.read_bytes()
    for arguments in (
        ("fit", table, "--target", "y", "--out", table),
        ("predict", model, table, "--out", model),
        ("evaluate", table, "--target", "y", "--out", table),
    ):
        done = bieqno(*arguments)
        assert (done.code, "would be overwritten" in done.err) == (1, True)
    assert (table.read_bytes(), model.read_bytes()) == before


def test_what_is_not_there_is_named(bieqno, table, model, tmp_path):
    missing = bieqno("fit", tmp_path / "nowhere.csv", "--target", "y", "--out", tmp_path / "m.bieqno")
    assert (missing.code, "nowhere.csv" in missing.err) == (1, True)
    pd.DataFrame({"A": [1.0], "c": [2.0]}).to_csv(tmp_path / "new.csv", index=False)
    lacking = bieqno("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert lacking.code == 1
    assert "lacks 2 of the 2 columns" in lacking.err
    assert "'a' (did you mean 'A'?)" in lacking.err
    foreign = bieqno("predict", table, table, "--out", tmp_path / "out.csv")
    assert (foreign.code, "not a bieqno file" in foreign.err) == (1, True)
    folder = bieqno("fit", table, "--target", "y", "--out", tmp_path / "no" / "m.bieqno")
    assert (folder.code, "there is no folder" in folder.err) == (1, True)
    assert bieqno("predict", model, table, "--quantiles", "2").code == 2
    assert bieqno("fit", table).code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", 9), "add --trained"),
        (("--members", 2), "add --trained"),
        (("--trained", "--fine-tune"), "--fine-tune belongs to the pretrained regressor"),
        (("--trained", "--no-correction"), "--no-correction belongs to the pretrained regressor"),
        (("--no-correction", "--fine-tune"), "which --no-correction leaves out"),
    ],
)
def test_options_of_the_other_regressor_are_refused(bieqno, table, tmp_path, options, said):
    for command in ("fit", "evaluate"):
        done = bieqno(command, table, "--target", "y", "--out", tmp_path / "out", *options)
        assert done.code == 2
        assert said in " ".join(done.err.replace("│", "").split())
        assert not list(tmp_path.iterdir())


def test_fit_names_what_it_used(bieqno, tmp_path):
    """A linear function is the trend of the local experts; a positive skewed target is transformed unless told not to."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(30, 5)), columns=list("abcde"))
    frame.assign(y=frame.sum(axis=1)).to_csv(tmp_path / "table.csv", index=False)
    arguments = ("fit", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "m.bieqno")
    assert "30 rows: local experts 100%\n" in bieqno(*arguments).out
    frame.assign(y=np.exp(2 * frame["a"])).to_csv(tmp_path / "table.csv", index=False)
    assert "target transformed by log" in bieqno(*arguments, "--inputs", "a").out
    assert "transformed" not in bieqno(*arguments, "--inputs", "a", "--transform", "none").out
    assert bieqno(*arguments, "--transform", "cube").code == 2


def test_categories_and_dates_are_inputs(bieqno, tmp_path):
    random = np.random.default_rng(0)
    town, day = random.choice(["Ulm", "Bonn"], 40), pd.Timestamp("2020-01-01") + pd.to_timedelta(range(40), unit="D")
    notes = [f"note {i}" for i in range(40)]
    frame = pd.DataFrame({"town": town, "day": day, "note": notes, "y": 1.0 * (town == "Ulm") + 0.01 * np.arange(40)})
    frame.to_csv(tmp_path / "table.csv", index=False)
    done = bieqno("fit", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "m.bieqno")
    assert "fitted y from town, day on 40 rows" in done.out
    assert "without numbers left out: note (40 different texts)" in done.err
    done = bieqno("predict", tmp_path / "m.bieqno", tmp_path / "table.csv", "--out", tmp_path / "out.csv")
    assert done.code == 0, done.err
    assert np.abs(pd.read_csv(tmp_path / "out.csv")["mean"] - frame["y"]).max() < 0.2


def test_a_full_disk_leaves_what_was_there(bieqno, table, model, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        done = bieqno("predict", model, table, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert done.code == 1
    assert f"cannot write {out}" in done.err
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_stopped_by_the_user(bieqno, table, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(PretrainedGGPRegressor, "fit", interrupted)
    done = bieqno("fit", table, "--target", "y", "--out", tmp_path / "m.bieqno")
    assert done.code == 130
    assert "nothing was written" in done.err
    assert not list(tmp_path.iterdir())


def test_parquet(bieqno, table, model, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        done = bieqno("fit", tmp_path / "table.parquet", "--target", "y", "--out", tmp_path / "m.bieqno")
        assert (done.code, "bieqno[parquet]" in done.err) == (1, True)
    pytest.importorskip("pyarrow")
    pd.read_csv(table).to_parquet(tmp_path / "table.parquet")
    done = bieqno("predict", model, tmp_path / "table.parquet", "--out", tmp_path / "out.parquet")
    assert done.code == 0, done.err
    assert pd.read_parquet(tmp_path / "out.parquet")["mean"].notna().sum() == 30


def test_evaluate_writes_a_page_of_its_own(bieqno, table, tmp_path):
    out = tmp_path / "page.html"
    done = bieqno("evaluate", table, "--target", "y", "--inputs", "a,b", "--out", out, *QUICK)
    assert done.code == 0, done.err
    numbers = json.loads(out.with_suffix(".json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert numbers["rows_learned_from"] + numbers["rows_held_out"] == 29
    assert {"ggp", "gp-se", "gp-matern12", "gp-matern32", "gp-matern52", "gp-two-se"} <= set(numbers["scores"])
    assert "--trained --steps 20 --members 1" in numbers["command"]
    # A sum of two inputs is no riddle for a Gaussian process: its error is far below the spread of y, which is 0.8.
    assert numbers["scores"]["gp-se"]["rmse"] < 0.1
    page = out.read_text()
    assert page.count("<figure data-chart") == 2
    # One file: it carries its script and images, and asks for nothing.
    addresses = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", page.split('<script type="application/json"')[0])
    assert len(addresses) >= 5
    assert all(address.startswith("data:") for address in addresses)
    assert "default-src 'none'" in page
    assert "do not differ" in page or "differ:" in page
    several = bieqno("evaluate", table, "--target", "y,z", "--inputs", "a,b", "--out", out)
    assert (several.code, "one target" in several.err) == (1, True)


def test_decimal_commas_are_read(tmp_path):
    path = tmp_path / "german.csv"
    path.write_text("a;town;y\n1,5;Ulm;2\n-0,25;Bonn, am Rhein;3\n")
    found = read_table(path)
    assert found["a"].tolist() == [1.5, -0.25]
    assert found["town"].tolist() == ["Ulm", "Bonn, am Rhein"]


def write_rows(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_question_mark_among_numbers_is_a_missing_value(tmp_path, capsys):
    rows = [f"{k},{k % 7}" for k in range(40)]
    rows[3] = "?,3"
    frame = read_table(write_rows(tmp_path / "t.csv", "a,y", rows))
    assert frame["a"].isna().sum() == 1
    assert frame["a"].dtype.kind == "f"
    assert "1 values of column 'a'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (['"1,234"', '"12,345"'], "thousands separators"),
        (['"3,14"', '"2,72"'], "decimal commas"),
        (["31.12.2024", "30.11.2024"], "dates: write them as 2024-12-31"),
        (["12 %", "7%"], "percent signs"),
        (["12 kg", "7 kg"], "units"),
    ],
)
def test_texts_that_look_like_numbers_get_a_hint(texts, hint, tmp_path):
    table = read_table(write_rows(tmp_path / "t.csv", "a,y", [f"{text},{k}" for k, text in enumerate(texts)]))
    with pytest.raises(ValueError, match=hint):
        training_columns(table, "y", "a", tmp_path / "t.csv")


def test_a_hint_shows_a_text_that_has_what_it_says(tmp_path):
    rows = ["0.0,1", *(f'"{k},000.5",{k}' for k in range(1, 20))]
    table = read_table(write_rows(tmp_path / "t.csv", "a,y", rows))
    with pytest.raises(ValueError, match=r"'1,000\.5' has thousands separators"):
        training_columns(table, "y", "a", tmp_path / "t.csv")


def test_predictions_go_to_standard_output(bieqno, table, model):
    done = bieqno("predict", model, table, "--out", "-")
    assert done.code == 0, done.err
    assert "mean,sd" in done.out.splitlines()[0]
    assert "written to standard output" in done.err
    assert len(done.out.splitlines()) == 31


@pytest.mark.parametrize(("stream", "said"), [(">&-", "is closed"), (">/dev/full", "No space left on device\n")])
def test_predictions_that_cannot_be_printed_are_an_error(table, model, stream, said):
    """With standard output closed they went nowhere, and were said to be written."""
    command = [Path(sys.executable).with_name("bieqno"), "predict", model, table, "--out", "-"]
    shell = ["sh", "-c", f"{shlex.join(map(str, command))} {stream}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Errno" not in done.stderr


def test_only_tables_go_to_standard_output(bieqno, table, tmp_path, monkeypatch):
    """Other commands made a file of that name."""
    monkeypatch.chdir(tmp_path)
    for command in ("fit", "evaluate"):
        done = bieqno(command, table, "--target", "y", "--out", "-")
        assert (done.code, "only tables go to standard output" in done.err) == (1, True)
    assert not list(tmp_path.iterdir())


def test_samples_beyond_the_machine_are_refused_at_once(bieqno, table, model, tmp_path):
    done = bieqno("predict", model, table, "--out", tmp_path / "out.csv", "--samples", 10**10)
    assert (done.code, "--samples: this needs" in done.err) == (1, True)


def test_whole_numbers_beyond_64_bits_are_numbers(tmp_path, capsys):
    path = write_rows(tmp_path / "t.csv", "a,y", [f"{k * 10**30},{k}" for k in range(1, 9)])
    inputs, _ = training_columns(read_table(path), "y", None, path)
    assert inputs["a"].tolist() == [float(k * 10**30) for k in range(1, 9)]
    assert not capsys.readouterr().err


def test_times_with_a_zone_are_times_in_utc():
    zoned = pd.date_range("2024-12-01", periods=6, tz="Europe/Berlin")
    found = FrameEncoder.of_all(pd.DataFrame({"day": zoned})).encode(pd.DataFrame({"day": zoned}))
    plain = pd.DataFrame({"day": zoned.tz_convert("UTC").tz_localize(None)})
    np.testing.assert_array_equal(found, FrameEncoder.of_all(plain).encode(plain))


def test_damaged_parquet_files_are_one_line(tmp_path):
    """Of 4,000 damaged files some ended in a KeyError or TypeError of pandas: in its metadata names and types are texts."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0]}).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"ImluZGV4") + 4] ^= 1  # "index_columns" in base 64
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read .* as Parquet"):
        read_table(path)


def test_outputs_that_are_no_regular_file(bieqno, table, model):
    """A device is written to and stays what it is; what is written beside a file has no place beside a device."""
    assert bieqno("predict", model, table, "--out", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
    done = bieqno("evaluate", table, "--target", "y", "--out", "/dev/null")
    assert done.code == 1
    assert "no regular file" in done.err


def test_members_beyond_all_memory_are_refused_at_once():
    with pytest.raises(ValueError, match="members"):
        GGPRegressor(members=100_000_000).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
