"""Settings shared by all tests."""

import os

# Several host devices, so that data-parallel training is tested on any machine; set before JAX starts.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()

import hypothesis
import jax
import pytest

# `ci` draws the same examples every time; `dev` looks for new ones.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=10, database=None)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=100)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def x64():
    """64-bit numbers for one test: where a closed form is compared."""
    with jax.enable_x64(True):
        yield
