"""A short form of each campaign: a few of its hostile cases end as they should."""

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.standard_promotion("bieqno is used as users use it")


@pytest.fixture(scope="module", autouse=True)
def _campaigns():
    sys.path.insert(0, str(ROOT / "campaigns"))
    yield
    sys.path.remove(str(ROOT / "campaigns"))


def test_hostile_calls():
    import calls

    chance, targets = random.Random(0), [*calls.operators(), *calls.filters()]
    for target in targets:
        name = chance.choice(sorted(target.arguments))
        for spoil in ("None", "NaN", "ragged"):
            outcome, detail = calls.outcome(target, {name: spoil})
            assert outcome in {"refused", "result", "not applicable"}, f"{target.name}: {detail}"


def test_calls_that_take_long_are_drawn_less_often_and_all_arguments_are_spoiled():
    import calls

    chance = random.Random(0)
    targets = [calls.Target(name, print, {"a": 1, "b": 2}) for name in ("cheap", "GGPRegressor")]
    drawn = [calls.draw(targets, chance) for _ in range(2000)]
    assert 40 < sum(target.name == "GGPRegressor" for target, _ in drawn) < 160  # of 2,000, 95 expected
    assert {tuple(sorted(spoiled)) for _, spoiled in drawn} == {("a",), ("b",), ("a", "b")}
    assert {how for _, spoiled in drawn for how in spoiled.values()} == set(calls.SPOILS)


def test_mutated_files():
    import files

    tally = files.campaign(1, 3)
    assert not tally.failures
    assert set(tally.counts) - {"Parquet", "Excel"} == {
        *("model", "filter", "checkpoint", "results"),
        *("netCDF", "TOML", "CSV"),
    }
    assert set(files.campaign(1, 4, ["CSV"]).counts) == {"CSV"}


def test_two_processes_write_to_one_place(tmp_path):
    """The result is that of one alone, and nothing is left; interruptions at random are in the campaign itself."""
    import commands

    folder = tmp_path / "folder"
    folder.mkdir()
    commands.prepare(folder, fitted_only=True)
    words = ("predict", "model.bieqno", "table.csv", "--out", "out.csv")
    assert commands.in_process(words, folder).returncode == 0
    expected = commands.digests(folder, "predict")
    commands.remove(folder, "predict")
    pair = [commands.Process(words, folder, tmp_path / name, new=True) for name in ("first", "second")]
    assert [process.ended()[0] for process in pair] == [0, 0]
    assert commands.digests(folder, "predict") == expected
    assert not commands.leftovers(folder)


def test_a_full_disk_leaves_what_was_there(tmp_path):
    import disks
    from bieqno.persistence import PersistenceError, replace_file

    if disks.why_no_disk():
        pytest.skip(disks.why_no_disk())
    with disks.small_disk(tmp_path / "disk", True, random.Random(0)) as disk:
        with pytest.raises(PersistenceError, match="No space left"):
            replace_file(disk / "out", bytes(60_000))
        assert (disk / "out").read_bytes() == b"what was there"
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "out"]


def test_a_full_disk_has_no_room_for_compiled_programs_and_that_is_said_once(tmp_path):
    import disks
    from bieqno.compilation import cache_problem

    if disks.why_no_disk():
        pytest.skip(disks.why_no_disk())
    with disks.small_disk(tmp_path / "disk", True, random.Random(0)) as disk:
        assert "compiled programs cannot be kept" in cache_problem(disk / "cache")
        assert "No space left" in cache_problem(disk / "cache")
    with disks.small_disk(tmp_path / "other", False, random.Random(0)) as disk:
        assert "Read-only file system" in cache_problem(disk / "cache")


def test_processes_share_a_count_and_what_was_tried_is_kept(tmp_path, monkeypatch):
    import argparse

    import tables

    # In a module of its own, which the processes find: `tests` may be the name of another package that is installed.
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    from counting import counted, stopped

    monkeypatch.setattr(tables, "PAGE", tmp_path / "page.md")
    tables.PAGE.write_text("a\n<!-- campaign: x -->\nold\n<!-- end of campaign -->\nb\n")
    shown = []
    tally = tables.shared(counted, argparse.Namespace(count=5, seed=3, workers=2), shown.append)
    assert tally.counts == {"seed 3": {"good": 3}, f"seed {3 + tables.SEEDS}": {"good": 2}}
    assert (tally.done, tally.expected, tally.failed()) == (5, 5, 0)
    assert tables.progress(tally, 60.0) == "5 of 5, 0 failures, 1.0 minutes"
    tables.write("x", tally.table())
    assert tables.PAGE.read_text().startswith("a\n<!-- campaign: x -->\n|  | tried | good |")
    with pytest.raises(SystemExit) as end:  # stopped early: the table has what was tried
        tables.run("x", stopped, count=4, arguments=["--write"])
    assert end.value.code == 1
    assert "`--count 4 --seed 0`, 0.0 minutes, stopped early, 2 tried, 1 failures." in tables.PAGE.read_text()
    assert tables.Tally.watch is None  # a later tally of something else does not write this table


def test_parts_of_a_campaign_are_summed(tmp_path, monkeypatch):
    import tables

    def counted(count, seed):
        """Count."""
        tally = tables.Tally(count)
        tally.add("a", "good" if seed else "lost", times=count)
        return tally

    monkeypatch.setattr(tables, "PAGE", tmp_path / "page.md")
    tables.PAGE.write_text("<!-- campaign: x -->\n<!-- end of campaign -->")
    for seed in ("0", "2", "10"):
        with pytest.raises(SystemExit) as end:
            tables.run("x", counted, count=4, arguments=["--seed", seed, "--parts", str(tmp_path / "x"), "--write"])
        assert end.value.code == (seed == "0")
    page = tables.PAGE.read_text()
    assert "`--count 4 --seed 0, 2, 10`, 0.0 minutes, 12 tried, 4 failures." in page
    assert "| a | 12 | 8 | 4 |" in page


COUNTING = '''
import tables

def counted(count, seed):
    tally = tables.Tally(count)
    for _ in range(count):
        tally.add(f"seed {seed}", "good")
        tally.step()
    return tally

def stopped(count, seed):
    """A campaign."""
    tally = tables.Tally(count)
    tally.add("a", "good")
    tally.add("a", "lost")
    raise KeyboardInterrupt
'''


def test_soak():
    import soak

    tally = soak.campaign(100, 0, part=20, names=["ETKF"])  # memory is compared with that after three parts
    assert not tally.failures


def test_lost_runs_of_the_filters_of_studies_are_counted():
    import soak

    tally = soak.studies(20, 0, names=["lorenz63"], truths=2, only=["ETKF tuned"])
    assert tally.counts == {"lorenz63, ETKF tuned, N = 16": {"kept": 2}}


def test_intervals_hold_away_from_the_rows():
    import coverage_of_intervals

    assert coverage_of_intervals.covered(1, 30, 0.1, 1, 0)["away"] > 0.8


def test_every_campaign_has_its_table_in_the_documentation():
    page = (ROOT / "docs" / "reliability.md").read_text()
    for name in ("calls", "files", "interrupted", "together", "disks", "threads", "soak", "studies", "coverage"):
        assert f"<!-- campaign: {name} -->" in page
