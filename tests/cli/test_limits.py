"""What cannot work is refused in one line and before anything long: sizes beyond the machine, seeds, links, missing files."""

import pytest

from bieqno.cli.output import LARGEST_SEED

pytestmark = pytest.mark.standard_promotion("the command runs as a user has it, with code of the user's own")
SETUP = """
[model]
object = "limits_model:model"
state = "limits_model:state"
[observation]
object = "limits_model:observation"
[filter]
kind = "ennf"
width = 4
[training]
objective = "imitation"
truths = 2
windows = 5
teacher_members = 4
"""
MODULE = """
import jax.numpy as jnp
from bieqno.assimilation import EnKF, Lorenz63, Observation
model, state, observation = Lorenz63(), jnp.array([-8.5, -7.0, 27.0]), Observation([0, 2], 1.0)
filter = EnKF()
"""


@pytest.fixture
def setup(tmp_path):
    (tmp_path / "limits_model.py").write_text(MODULE)
    (tmp_path / "setup.toml").write_text(SETUP)
    return tmp_path / "setup.toml"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # The runs of the teacher alone would just have fitted in, but not what is computed from them.
        ("teacher_members = 4", "teacher_members = {}", "[training]: this needs"),
        ("width = 4", "width = 100000000", "'width' and 'depth' in [filter]: this needs"),
    ],
)
def test_a_training_beyond_the_machine_is_refused_at_once(bieqno, setup, tmp_path, monkeypatch, old, new, said):
    memory = 25 * 10**9
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory}
    monkeypatch.setattr("bieqno.lab.system_files.reading.os.sysconf", sizes.__getitem__)
    setup.write_text(SETUP.replace(old, new.format(memory // (2 * 5 * 3 * 4) - 1)))
    done = bieqno("train-filter", setup, "--out", tmp_path / "filter.bieqno")
    assert done.code == 1
    assert said in done.err
    assert "at once, the machine has 25" in done.err
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_series_beyond_the_machine_is_refused(bieqno, setup, tmp_path):
    done = bieqno("simulate", setup, "--windows", 10**12, "--out", tmp_path / "obs.nc")
    assert (done.code, "--windows: this needs" in done.err) == (1, True)


def test_a_seed_that_no_generator_takes_is_wrong_usage(bieqno, setup, tmp_path):
    for words in (("simulate", setup), ("run", "linear-gaussian"), ("fit", "none.csv", "--target", "y")):
        done = bieqno(*words, "--seed", LARGEST_SEED + 1, "--out", tmp_path / "out")
        assert (done.code, "--seed" in done.err) == (2, True)


def test_links_that_go_round_are_one_line(bieqno, setup, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    done = bieqno("simulate", setup, "--out", tmp_path / "loop")
    assert done.code == 1
    assert f"cannot write {tmp_path / 'loop'}: its links lead nowhere" in done.err


def test_observations_that_are_missing_are_named_and_nothing_else(bieqno, setup, tmp_path):
    missing = tmp_path / "none.nc"
    for words in (("--observations", missing), ("--observations", tmp_path)):
        done = bieqno("assimilate", setup, *words, "--filter", "limits_model:filter", "--out", tmp_path / "a.nc")
        assert done.code == 1
        assert "Errno" not in done.err
        assert str(words[1]) in done.err


def test_what_xla_cannot_allocate_is_one_line(bieqno, monkeypatch, tmp_path):
    def exhausted(*args):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.")

    monkeypatch.setattr("bieqno.cli.table_files.read_table", exhausted)
    done = bieqno("fit", tmp_path / "none.csv", "--target", "y")
    assert done.code == 1
    assert done.err.startswith("bieqno: there is not enough memory for this\n")
