import json
import os
import stat
import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from jaxtyping import Array

import bieqno
from bieqno import (
    MLP,
    AttentionPool,
    CrossAttentionPool,
    EquivariantOperator,
    InvariantOperator,
    LowRankGaussian,
    MeanPool,
    PersistenceError,
    PosteriorOperator,
)
from bieqno.persistence.tensorfile import replace_file, write_tensors

KEY = jax.random.key(0)


class Odd(eqx.Module):
    """A module of a user, with every kind of field."""

    anything: dict[str, object]
    key: Array
    name: str = eqx.field(static=True)


MODULES = {
    "invariant": InvariantOperator(2, 3, width=8, pool=MeanPool(count=True), activation=jax.nn.gelu, key=KEY),
    "equivariant": EquivariantOperator(2, None, width=8, pool=AttentionPool(8, heads=2, key=KEY), key=KEY),
    "posterior": PosteriorOperator(
        1, 2, 3, width=8, fourier_features=4, pool=CrossAttentionPool(8, query_size=8, heads=2, key=KEY), key=KEY
    ),
    "lean": PosteriorOperator(1, 2, 3, width=8, lean=True, residual=True, chunk_size=10, key=KEY),
    "with Equinox": InvariantOperator(2, 3, embed=eqx.nn.Linear(2, 4, key=KEY), key=KEY),
    "gaussian": LowRankGaussian(jnp.arange(3.0), jnp.ones((3, 2)), jnp.zeros(3)),
}


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_round_trip_is_exact(module, tmp_path):
    bieqno.save(tmp_path / "m.bieqno", module)
    again = bieqno.load(tmp_path / "m.bieqno")
    assert type(again) is type(module)
    assert eqx.tree_equal(module, again, typematch=True)
    assert [p.name for p in tmp_path.iterdir()] == ["m.bieqno"]


def test_loaded_operator_works(tmp_path):
    bieqno.save(tmp_path / "m.bieqno", MODULES["posterior"])
    again = bieqno.load(tmp_path / "m.bieqno")
    x, d = jnp.ones((3, 1)), jnp.ones((2, 2))
    assert (again(x, d) == MODULES["posterior"](x, d)).all()


def test_unusual_fields_and_types(tmp_path):
    module = Odd(
        {
            "half": jnp.ones(2, jnp.bfloat16),
            "count": jnp.arange(3, dtype=jnp.int8),
            "host": np.array([[np.nan, np.inf]]),
            "nested": [(1, -0.0, None), {"a": True}],
            "not finite": float("-inf"),
            "scalar": jnp.float32(3),
        },
        jax.random.key(3),
        "Ω",
    )
    bieqno.save(tmp_path / "m.bieqno", module, known=[Odd])
    again = bieqno.load(tmp_path / "m.bieqno", known=[Odd])
    assert again.anything["half"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(again.anything["host"], module.anything["host"])
    assert repr(again.anything["nested"]) == repr(module.anything["nested"])
    assert again.anything["not finite"] == float("-inf")
    assert (jax.random.key_data(again.key) == jax.random.key_data(module.key)).all()
    assert again.name == "Ω"


def test_unknown_classes_and_functions(tmp_path):
    odd = Odd({}, KEY, "x")
    with pytest.raises(PersistenceError, match=r"known=\[Odd\]"):
        bieqno.save(tmp_path / "m.bieqno", odd)
    with pytest.raises(PersistenceError, match=r"activation.*must be passed in known"):
        bieqno.save(tmp_path / "m.bieqno", MLP(1, 1, activation=lambda x: x, key=KEY))
    bieqno.save(tmp_path / "m.bieqno", odd, known=[Odd])
    with pytest.raises(PersistenceError, match=r"Odd, which is not one of bieqno's own"):
        bieqno.load(tmp_path / "m.bieqno")


def test_names_that_collide(tmp_path):
    odd = Odd({"a.b": jnp.ones(1), "a": {"b": jnp.zeros(1)}}, KEY, "x")
    bieqno.save(tmp_path / "m.bieqno", odd, known=[Odd])
    assert bieqno.load(tmp_path / "m.bieqno", known=[Odd]).anything["a.b"] == 1

    def plus(x):
        return x + 1

    def times(x):
        return 2 * x

    times.__name__ = "plus"
    both = Odd({"f": (plus, times)}, KEY, "x")
    with pytest.raises(PersistenceError, match="two different things are called"):
        bieqno.save(tmp_path / "m.bieqno", both, known=[Odd, plus, times])
    with pytest.raises(PersistenceError, match="no name of its own"):
        bieqno.save(tmp_path / "m.bieqno", both, known=[lambda x: x])
    known = {"odd": Odd, "first": plus, "second": times}
    bieqno.save(tmp_path / "m.bieqno", both, known=known)
    first, second = bieqno.load(tmp_path / "m.bieqno", known=known).anything["f"]
    assert (first(10), second(10)) == (11, 20)


def test_arrays_from_other_machines(tmp_path):
    odd = Odd({"big": np.arange(3, dtype=">f4"), "column": np.ones((3, 2)).T, "one": np.int16(7)}, KEY, "x")
    bieqno.save(tmp_path / "m.bieqno", odd, known=[Odd])
    again = bieqno.load(tmp_path / "m.bieqno", known=[Odd]).anything
    assert again["big"].tolist() == [0, 1, 2]
    assert again["column"].shape == (2, 3)
    assert type(again["one"]) is np.int16


@pytest.mark.parametrize("shape", [(3, 2), (4, 3, 2)])
def test_arrays_in_fortran_order(shape, tmp_path):
    """Written in the order of their memory, they would not agree with their checksum."""
    ordered = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    columns = np.asfortranarray(ordered)
    assert not columns.flags.c_contiguous
    bieqno.save(tmp_path / "m.bieqno", Odd({"columns": columns, "turned": columns[::-1].T}, KEY, "x"), known=[Odd])
    again = bieqno.load(tmp_path / "m.bieqno", known=[Odd]).anything
    np.testing.assert_array_equal(again["columns"], ordered)
    np.testing.assert_array_equal(again["turned"], ordered[::-1].T)


def test_every_truncation_and_every_flipped_bit_is_noticed(tmp_path):
    """Each byte is damaged in turn: an error, or (padding of the header) exactly the same module."""
    path = tmp_path / "m.bieqno"
    module = MeanPool(count=True), MLP(1, 1, width=1, depth=1, key=KEY)
    module = InvariantOperator(1, None, embed=module[1], pool=module[0], key=KEY)
    bieqno.save(path, module)
    content = path.read_bytes()
    harmless = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        for version in (bytes(damaged), content[:place]):
            path.write_bytes(version)
            try:
                assert eqx.tree_equal(bieqno.load(path), module, typematch=True)
                harmless += 1
            except PersistenceError as error:
                assert str(path) in str(error)  # noqa: PT017
    assert harmless < 10


def forge(path, change, tensors=None, width=2):
    """A file with a right checksum, but a description changed by hand."""
    operator = InvariantOperator(1, 2, width=width, depth=1, key=KEY)
    bieqno.save(path, operator)
    stored = {
        name: np.frombuffer(t["data"], np.float32).reshape(t["shape"])
        for name, t in safetensors.deserialize(path.read_bytes())
    }
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    label = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["bieqno"])
    tree = json.loads(label["description"])
    write_tensors(path, tensors(stored) if tensors else stored, kind="module", description=json.dumps(change(tree)))


def rename(tree, name):
    return {**tree, "module": name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: rename(tree, "os.system"), "os.system, which is not one of bieqno's own"),
        (lambda tree: rename(tree, "jax.relu"), "as what it is not"),
        (lambda tree: rename(tree, "bieqno.AbstractPool"), "fields"),
        (lambda tree: {"module": "bieqno.AbstractPool", "fields": {}}, "abstract"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "fit": {"function": "bieqno.MLP"}}}, "as what it is not"),
        (lambda tree: {"__reduce__": ["os.system", "true"]}, "does not describe a module"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "pool": {"list": [{"odd": 1}]}}}, "unknown form"),
        (lambda tree: 3, "does not describe a module"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "out_size": 9}}, "do not fit together"),
        (lambda tree: {**tree, "fields": {}}, "has the fields"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "in_size": 5}}, "do not fit together"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "embed": {"array": "no such"}}}, "do not fit together"),
        (lambda tree: {**tree, "fields": {**tree["fields"], "pool": 3}}, "do not fit together"),
    ],
)
def test_forged_descriptions_are_refused(change, message, tmp_path):
    forge(tmp_path / "m.bieqno", change)
    with pytest.raises(PersistenceError, match=message):
        bieqno.load(tmp_path / "m.bieqno")


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("how", ["twice as long", "one value", "whole numbers"])
def test_wrong_arrays_are_refused(which, how, tmp_path):
    """Each array alone: longer, of one value that would broadcast, or of another type."""

    def spoil(tensors):
        name = sorted(tensors)[which]
        x = tensors[name]
        changed = {
            "twice as long": np.concatenate([x, x]),
            "one value": x.reshape(-1)[:1],
            "whole numbers": x.astype("i4"),
        }
        return {**tensors, name: changed[how]}

    forge(tmp_path / "m.bieqno", lambda tree: tree, spoil, width=2)
    with pytest.raises(PersistenceError, match="do not fit together"):
        bieqno.load(tmp_path / "m.bieqno")


def test_foreign_newer_and_missing_files(tmp_path, monkeypatch):
    path = tmp_path / "m.bieqno"
    with pytest.raises(PersistenceError, match=r"cannot read .*No such file"):
        bieqno.load(path)
    path.write_bytes(b"not at all")
    with pytest.raises(PersistenceError, match="damaged or not a bieqno file"):
        bieqno.load(path)
    path.write_bytes(safetensors.numpy.save({}))
    with pytest.raises(PersistenceError, match="not one of bieqno's"):
        bieqno.load(path)
    write_tensors(path, {}, kind="training checkpoint", description="")
    with pytest.raises(PersistenceError, match="holds a training checkpoint, not a module"):
        bieqno.load(path)
    monkeypatch.setattr("bieqno.persistence.tensorfile.FORMAT_VERSION", 2)
    bieqno.save(path, MeanPool())
    monkeypatch.undo()
    with pytest.raises(PersistenceError, match="format version 2, newer than 1"):
        bieqno.load(path)


def test_a_file_of_an_older_version_is_migrated_or_refused(tmp_path, monkeypatch):
    """Version 0 was read as if it were today's; a later version brings the older one up, one step after the other."""
    path = tmp_path / "m.bieqno"
    monkeypatch.setattr("bieqno.persistence.tensorfile.FORMAT_VERSION", 0)
    bieqno.save(path, MeanPool(count=True))
    monkeypatch.undo()
    with pytest.raises(PersistenceError, match=r"format version 0 \(written by bieqno \d.*\), too old"):
        bieqno.load(path)
    bieqno.save(path, MeanPool(count=True))
    monkeypatch.setattr("bieqno.persistence.tensorfile.FORMAT_VERSION", 3)
    with pytest.raises(PersistenceError, match=r"format version 1 .*reads 3"):
        bieqno.load(path)

    def switch_off(tensors, description):
        return tensors, description.replace('"count": true', '"count": false')

    def rename_pool(tensors, description):
        return tensors, description.replace("MeanPool", "NoPool")

    migrations = {("module", 1): switch_off, ("module", 2): rename_pool}
    monkeypatch.setattr("bieqno.persistence.tensorfile.MIGRATIONS", migrations)
    with pytest.raises(PersistenceError, match="NoPool"):
        bieqno.load(path)
    migrations["module", 2] = lambda *content: content
    assert bieqno.load(path) == MeanPool(count=False)


class Grown(eqx.Module):
    """`Odd` some releases later: three fields more, each with a default."""

    anything: dict[str, object]
    key: Array
    name: str = eqx.field(static=True)
    rate: Array = eqx.field(default=0.5, converter=jnp.asarray)
    tags: list[str] = eqx.field(default_factory=list)
    limit: int = eqx.field(static=True, default=7)


class Needy(Odd):
    """`Odd` with a field that has no default."""

    needed: int


def test_a_field_that_a_file_does_not_know_takes_its_default(tmp_path):
    bieqno.save(tmp_path / "m.bieqno", Odd({"a": jnp.ones(2)}, KEY, "x"), known={"odd": Odd})
    grown = bieqno.load(tmp_path / "m.bieqno", known={"odd": Grown})
    assert eqx.tree_equal(grown, Grown({"a": jnp.ones(2)}, KEY, "x"), typematch=True)
    with pytest.raises(PersistenceError, match=r"Needy has the fields .*'needed'"):
        bieqno.load(tmp_path / "m.bieqno", known={"odd": Needy})
    bieqno.save(tmp_path / "m.bieqno", grown, known={"odd": Grown})
    with pytest.raises(PersistenceError, match="Odd has the fields"):  # what is in the file is never left out
        bieqno.load(tmp_path / "m.bieqno", known={"odd": Odd})


def test_64_bit_files_need_64_bit_numbers(tmp_path):
    with jax.enable_x64(True):
        bieqno.save(tmp_path / "m.bieqno", LowRankGaussian(jnp.zeros(1), jnp.zeros((1, 1)), jnp.zeros(1)))
        assert bieqno.load(tmp_path / "m.bieqno").mean.dtype == jnp.float64
    with pytest.raises(PersistenceError, match="jax_enable_x64"):
        bieqno.load(tmp_path / "m.bieqno")


def test_failed_writes_leave_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.bieqno"
    bieqno.save(path, MeanPool())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PersistenceError, match="No space left on device"):
        bieqno.save(path, MeanPool(count=True))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(PersistenceError, match=r"cannot write .*No such file"):
        bieqno.save(tmp_path / "no" / "folder.bieqno", MeanPool())


def test_the_file_is_readable_by_others_as_usual(tmp_path):
    """A temporary file is private; the finished one follows the umask like any other."""
    path = tmp_path / "m.bieqno"
    previous = os.umask(0o022)
    try:
        bieqno.save(path, MeanPool())
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_loading_imports_nothing_by_name(tmp_path):
    """A hostile name is never looked up: loading such a file imports no module that was not there before."""
    forge(tmp_path / "m.bieqno", lambda tree: rename(tree, "antigravity.Linear"))
    code = (
        "import sys, bieqno; before = set(sys.modules)\n"
        f"try: bieqno.load({str(tmp_path / 'm.bieqno')!r})\n"
        "except bieqno.PersistenceError: print('refused', 'antigravity' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "False"]


@pytest.mark.parametrize("writable", [True, False])
def test_compiled_programs_are_kept_or_one_warning_says_why_not(tmp_path, writable):
    """In a process of its own, which has no cache yet; a file in place of the folder cannot be written by anybody."""
    folder = tmp_path / "cache"
    if not writable:
        folder.write_text("")
    code = """
import warnings
import jax
from bieqno.compilation import use_compilation_cache
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for _ in range(2):
        use_compilation_cache()
print(len(found), jax.config.jax_compilation_cache_dir is not None)
"""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment = kept | {"BIEQNO_CACHE": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["0", "True"] if writable else ["1", "False"])


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    target, link = tmp_path / "model.bieqno", tmp_path / "latest"
    target.write_bytes(b"old")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(PersistenceError, match="cannot write"):
        replace_file(tmp_path / "round", b"new")


def test_a_pipe_is_written_to_and_never_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"content")
    reader.join(timeout=30)
    assert read == [b"content"]
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
