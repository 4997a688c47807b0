"""An exported filter gives the same analysis elsewhere: by StableHLO, by ONNX Runtime, and from C and Fortran."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bieqno.assimilation import LocalEnNF, Lorenz96, Observation, Places, System
from bieqno.interop.export import analysis_of, export_filter

EXAMPLE = Path(__file__).parents[2] / "examples" / "export"
HEADER = Path(__file__).parent / "ort"
OBSERVED = np.array([1.0, np.nan, 3.0], np.float32)
n, m = 9, len(OBSERVED)


@pytest.fixture(scope="module")
def system():
    return System(Lorenz96(n), Observation(range(0, n, 3), 1.0), jnp.full(n, 8.0), Places.grid(n, period=float(n)))


@pytest.fixture(scope="module")
def filter(system):
    """Weights that are no longer zero anywhere, as after training."""
    filter = LocalEnNF.untrained(system, width=4, channels=2, key=jax.random.key(0))
    weights, others = jax.tree.flatten(filter)
    keys = jax.random.split(jax.random.key(1), len(weights))
    moved = [
        x + 0.05 * jax.random.normal(k, x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for x, k in zip(weights, keys, strict=True)
    ]
    changed = jax.tree.unflatten(others, moved)
    kept = {name: getattr(filter, name) for name in ("climate", "extent", "neighbourhoods")}
    return type(filter)(**{**vars(changed), **kept})


def ensembles(N):
    ensemble, noise = (jax.random.normal(jax.random.key(k), (N, n)) for k in (2, 3))
    return np.asarray(3 + 2 * ensemble), np.asarray(noise)


def test_stablehlo_takes_any_number_of_members(filter, system, tmp_path):
    export_filter(filter, system, tmp_path / "filter.hlo", format="stablehlo")
    stored = jax.export.deserialize(bytearray((tmp_path / "filter.hlo").read_bytes()))
    assert [str(argument.shape) for argument in stored.in_avals] == ["(N, 9)", "(3,)", "(N, 9)"]
    for N in (2, 10):
        ensemble, noise = ensembles(N)
        expected = jax.jit(analysis_of(filter, system))(ensemble, OBSERVED, noise)
        np.testing.assert_allclose(stored.call(ensemble, OBSERVED, noise), expected, atol=1e-5)


def test_its_program_pads_between_no_values(filter, system):
    """Which ONNX cannot express; seen here also where the converter is not installed."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, n), (m,), (4, n))]
    program = re.sub(r"np\.int64\((-?\d+)\)", r"\1", str(jax.make_jaxpr(analysis_of(filter, system))(*shapes)))
    paddings = [ast.literal_eval(found) for found in re.findall(r"padding_config=(\(\(.*?\),?\))", program)]
    assert all(between == 0 for padding in paddings for _, _, between in padding)


@pytest.fixture(scope="module")
def onnx_file(filter, system, tmp_path_factory):
    pytest.importorskip("jax2onnx", reason="needs the extra bieqno[export]")
    path = tmp_path_factory.mktemp("export") / "filter.onnx"
    export_filter(filter, system, path)
    return path


@pytest.mark.filterwarnings("default")  # of the converter, which has its own
def test_onnx_takes_any_number_of_members(filter, system, onnx_file):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(onnx_file), options)
    for N in (2, 10, 37):
        ensemble, noise = ensembles(N)
        (found,) = session.run(["posterior"], {"ensemble": ensemble, "observed": OBSERVED, "noise": noise})
        expected = jax.jit(analysis_of(filter, system))(ensemble, OBSERVED, noise)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(found - ensemble).max() > 0.1


@pytest.fixture
def library(tmp_path):
    """The library in the Python wheel, under the name that programs which link with it look for."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime has no library to link with")
    named = tmp_path / "libonnxruntime.so.1"
    named.symlink_to(found[0])
    return named


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


@pytest.mark.filterwarnings("default")
def test_the_c_program_analyses_as_jax_does(filter, system, onnx_file, library, tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    sources = (EXAMPLE / "main.c", EXAMPLE / "analysis.c")
    program = tmp_path / "analyse"
    strict = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    run(compiler, *strict, f"-I{HEADER}", f"-I{EXAMPLE}", *sources, library, f"-Wl,-rpath,{tmp_path}", "-o", program)
    for N in (2, 10, 37):
        ensemble, noise = ensembles(N)
        files = {name: tmp_path / f"{name}.bin" for name in ("ensemble", "observed", "noise", "posterior")}
        for name, values in (("ensemble", ensemble), ("observed", OBSERVED), ("noise", noise)):
            files[name].write_bytes(values.astype(np.float32).tobytes())
        run(program, onnx_file, N, n, m, *files.values())
        found = np.frombuffer(files["posterior"].read_bytes(), np.float32).reshape(N, n)
        np.testing.assert_allclose(found, jax.jit(analysis_of(filter, system))(ensemble, OBSERVED, noise), atol=1e-5)
    wrong = subprocess.run(
        [str(program), "none.onnx", *"111", *map(str, files.values())], capture_output=True, text=True
    )
    assert wrong.returncode == 1
    assert "none.onnx" in wrong.stderr


@pytest.mark.filterwarnings("default")
def test_the_fortran_module_analyses_as_jax_does(filter, system, onnx_file, library, tmp_path):
    if shutil.which("gfortran") is None or shutil.which("gcc") is None:
        pytest.skip("needs gfortran and gcc")
    ensemble, noise = ensembles(4)
    for name, values in (("ensemble", ensemble), ("observed", OBSERVED), ("noise", noise)):
        (tmp_path / f"{name}.bin").write_bytes(values.astype(np.float32).tobytes())
    (tmp_path / "main.f90").write_text(f"""
program main
  use bieqno_analysis
  use, intrinsic :: iso_c_binding
  real(c_float) :: ensemble({n}, 4), noise({n}, 4), observed({m})
  type(c_ptr) :: filter
  call get("ensemble.bin", ensemble, size(ensemble))
  call get("noise.bin", noise, size(noise))
  call get("observed.bin", observed, size(observed))
  filter = filter_open("{onnx_file}")
  call filter_analyse(filter, ensemble, observed, noise)
  call filter_close(filter)
  open(10, file="posterior.bin", access="stream", form="unformatted")
  write(10) ensemble
contains
  subroutine get(path, values, count)
    character(*), intent(in) :: path
    integer, intent(in) :: count
    real(c_float), intent(out) :: values(count)
    open(10, file=path, access="stream", form="unformatted")
    read(10) values
    close(10)
  end subroutine
end program
""")
    compiled = tmp_path / "analysis.o"
    run("gcc", "-c", "-std=c11", f"-I{HEADER}", EXAMPLE / "analysis.c", "-o", compiled)
    run("gfortran", f"-J{tmp_path}", EXAMPLE / "bieqno_analysis.f90", tmp_path / "main.f90", compiled, library,
        f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "main")  # fmt: skip
    subprocess.run([str(tmp_path / "main")], check=True, cwd=tmp_path)
    found = np.frombuffer((tmp_path / "posterior.bin").read_bytes(), np.float32).reshape(4, n)
    np.testing.assert_allclose(found, jax.jit(analysis_of(filter, system))(ensemble, OBSERVED, noise), atol=1e-5)


def test_what_cannot_be_exported_is_named(filter, system, tmp_path):
    with pytest.raises(ValueError, match="format='xml'"):
        export_filter(filter, system, tmp_path / "filter", format="xml")
    with pytest.raises(ValueError, match="N = 5 this filter is its base"):
        export_filter(filter.falling_back({5: {"radius": 0.5, "inflation": 1.0}}), system, tmp_path / "filter")
    assert not list(tmp_path.iterdir())
