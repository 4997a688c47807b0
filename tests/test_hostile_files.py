"""Files that were changed by hand, with a right checksum: refused when they are read, never later, and never run."""

import ast
import json
import os
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bieqno
from bieqno import PersistenceError
from bieqno import assimilation as da
from bieqno.persistence.tensorfile import pack_tensors, replace_file, unpack_tensors
from bieqno.regression import load_regressor

pytestmark = pytest.mark.standard_promotion("as users have it")
SOURCE = Path(bieqno.__file__).parent
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model.bieqno"
    X = np.linspace(0, 1, 12)[:, None]
    bieqno.PretrainedGGPRegressor(correction=False).fit(X, X[:, 0] ** 2).save(path)
    return path.read_bytes()


def forged(content, path, change_tree=lambda tree: None, change_tensors=lambda tensors: None):
    tensors, description = unpack_tensors(content, kind="module", source="good")
    tree, tensors = json.loads(description), {name: np.array(values) for name, values in tensors.items()}
    change_tree(tree)
    change_tensors(tensors)
    path.write_bytes(pack_tensors(tensors, kind="module", description=json.dumps(tree)))
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_names_", {"list": [{"list": ["y"]}]}),
        ("feature_names_in_", {"list": [{"list": ["x"]}]}),
        ("feature_names_in_", {"list": ["x", "z"]}),
        ("n_features_in_", 10**400),
        ("single_output_", "yes"),
        ("seed_", -1),
        ("n_iter_", 1.5),
    ],
)
def test_what_no_fit_finds_is_refused(model, name, value, tmp_path):
    def change(tree):
        tree["fields"]["found"]["dict"][name] = value

    with pytest.raises(PersistenceError):
        load_regressor(forged(model, tmp_path / "m", change))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(model, value, tmp_path):
    names = [name for name in unpack_tensors(model, kind="module", source="good")[0] if "scale" in name]
    assert names

    def change(tensors):
        for name in names:
            tensors[name] = np.full_like(tensors[name], value)

    with pytest.raises(PersistenceError):
        load_regressor(forged(model, tmp_path / "m", change_tensors=change))


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_a_scale_whose_square_is_no_number_is_refused(model, value, tmp_path):
    """It was an OverflowError of the first prediction."""
    names = [name for name in unpack_tensors(model, kind="module", source="good")[0] if "target_scale" in name]
    assert names

    def change(tensors):
        for name in names:
            tensors[name] = np.full_like(tensors[name], value)

    with pytest.raises(PersistenceError, match="scale of the targets"):
        load_regressor(forged(model, tmp_path / "m", change_tensors=change))


def test_another_type_of_numbers_and_a_number_beyond_floats_are_refused(tmp_path):
    filter = da.LETKF(da.Neighbours.within(2.0, np.arange(3.0)[:, None], np.zeros((1, 1))), 2.0)
    da.save_filter(tmp_path / "f", filter)
    content = (tmp_path / "f").read_bytes()
    assert da.load_filter(tmp_path / "f").radius == 2.0

    def small(tensors):
        for name in [name for name in tensors if "distance" in name]:
            tensors[name] = np.zeros(tensors[name].shape, np.int8)

    def large(tree):
        tree["fields"]["radius"] = 10**400

    for changes in ({"change_tensors": small}, {"change_tree": large}):
        with pytest.raises(PersistenceError):
            da.load_filter(forged(content, tmp_path / "g", **changes))


def test_weights_that_are_nan_are_refused(tmp_path):
    bieqno.save(tmp_path / "m", bieqno.MLP(1, 1, width=2, key=KEY))
    content = (tmp_path / "m").read_bytes()

    def change(tensors):
        tensors[min(tensors)][...] = np.nan

    with pytest.raises(PersistenceError, match="not finite"):
        bieqno.load(forged(content, tmp_path / "m", change_tensors=change))


def test_predictions_are_finite_or_an_error(model, tmp_path):
    (tmp_path / "m").write_bytes(model)
    fitted = load_regressor(tmp_path / "m")
    object.__setattr__(fitted.processes_[0], "variance_factor", np.inf)
    with pytest.raises(ValueError, match="not finite"):
        fitted.predict([[0.5]], return_std=True)


def test_a_target_that_varies_little_about_a_large_value_is_not_constant():
    X = np.linspace(0, 1, 30)[:, None]
    y = 1e6 + 1e-6 * np.sin(6 * X[:, 0])
    found = bieqno.PretrainedGGPRegressor(correction=False).fit(X, y).predict(X)
    assert np.std(found) > 0.5 * np.std(y)


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(link, b"content")
    reader.join(10)
    assert read == [b"content"]
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path):
    old, young = tmp_path / ".out.0.partial", tmp_path / ".out.1.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    replace_file(tmp_path / "out", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.1.partial", "out"]


def test_an_operator_outside_jax_serves_the_local_filter():
    """What JAX cannot differentiate has no gradient to tell the network, and is observed all the same."""

    def operator(z):
        shape = jax.ShapeDtypeStruct((2,), z.dtype)
        return jax.pure_callback(lambda a: np.asarray(a)[..., ::2], shape, z, vmap_method="expand_dims")

    ring = da.Places.grid(4, period=4.0)
    observation = da.Observation(operator, 1.0)
    places = ring.at([0, 2])
    near = da.Neighbourhoods.of(ring, places, radius=2.0, reach=1.0)
    filter = da.LocalEnNF.new(
        near, bieqno.operators.Standardiser.unit(1), jnp.array([9.0]), width=4, channels=1, key=KEY
    )
    prior = jax.random.normal(KEY, (3, 4))
    observed = observation.window(jnp.array([1.0, 2.0]))
    posterior = jax.jit(lambda members: filter(members, observed, key=KEY))(prior)
    assert np.isfinite(np.asarray(posterior)).all()


MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


def test_nothing_is_evaluated_unpickled_or_handed_to_a_shell():
    nodes = [(path, node) for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    for path, node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
            assert not {name.split(".")[0] for name in names} & MODULES, path
        if isinstance(node, ast.Call):
            called, words = ast.unparse(node.func), [ast.unparse(word) for word in node.keywords]
            assert called not in {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}, path
            assert not {"shell=True", "allow_pickle=True"} & set(words), path


def test_scripts_of_pages_do_not_build_code_from_text():
    for path in SOURCE.rglob("*.js"):
        assert not re.search(r"\beval\(|new Function\(|\.innerHTML\s*=|document\.write", path.read_text()), path
