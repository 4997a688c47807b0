"""Settings shared by all tests."""

import os
from pathlib import Path

# Set before JAX starts. Several host devices, so that data-parallel training is tested on any machine; and as little
# optimization as the compiler knows, for the suite compiles far more than it computes: with the last three a training of
# the examples compiles in a third of the time. `make test` runs what is marked `numbers` again without these flags.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=4",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",  # each worker has a core of its own
    ][: 1 if "BIEQNO_USER_FLAGS" in os.environ else None]
)
# Compiling is most of what the suite does: workers, child processes and later runs share what was compiled once.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the compiler reports on cached programs at length

import hypothesis
import jax
import pytest

# `ci` draws the same examples every time, `dev` looks for many new ones. A test whose examples have shapes of their own, each
# of which compiles anew, draws few: `@settings.get_profile("compiling")`.
DEV = os.environ.get("HYPOTHESIS_PROFILE", "ci") == "dev"
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=20, database=None)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=100)
hypothesis.settings.load_profile("dev" if DEV else "ci")
hypothesis.settings.register_profile("compiling", max_examples=100 if DEV else 3)


# Folders whose formulas still add a vector to every row of a matrix, as NumPy users write it; the others are strict.
STANDARD_PROMOTION = ("assimilation", "interop", "regression", "lab", "cli", "test_examples.py")


@pytest.fixture(autouse=True)
def _strict_promotion(request):
    """No array changes its type or its number of axes silently; `standard_promotion(reason)` opts a test or module out."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if folder in STANDARD_PROMOTION or request.node.get_closest_marker("standard_promotion"):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """Compiled programs accumulate, gigabytes and thousands of memory maps: a worker that kept all of them crashed."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """64-bit numbers for one test: where a closed form is compared."""
    with jax.enable_x64(True):
        yield
