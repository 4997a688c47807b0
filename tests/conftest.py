"""Settings shared by all tests."""

import os
from pathlib import Path

# Set before JAX starts. Several host devices, so that data-parallel training is tested on any machine; and as little
# optimization as the compiler knows, for the suite compiles far more than it computes: with the last three a training of
# the examples compiles in a third of the time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=4",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",  # each worker has a core of its own
        os.environ.get("XLA_FLAGS", ""),
    ]
)
# Compiling is most of what the suite does: workers, child processes and later runs share what was compiled once.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import hypothesis
import jax
import pytest

# `ci` draws the same few examples every time, for each new shape compiles anew; `dev` looks for many new ones.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=3, database=None)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=100)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """Compiled programs pile up, gigabytes and thousands of memory maps of them: a worker that kept all of them crashed."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """64-bit numbers for one test: where a closed form is compared."""
    with jax.enable_x64(True):
        yield
