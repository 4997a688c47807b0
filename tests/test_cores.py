"""The limit to one thread belongs to the process: it lasts until the last of several threads is done with it."""

import threading

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_info

from bieqno.cores import OneThread


def threads_of_blas():
    scipy.linalg.cholesky(np.eye(2))
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_limit_lasts_until_the_last_thread_is_done():
    """The first to end gave it back while others computed: of 1,600 fits in 8 threads some differed in their last bits."""
    before, limit = threads_of_blas(), OneThread()
    first_in, second_in = threading.Event(), threading.Event()

    def first():
        with limit():
            first_in.set()
            assert second_in.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(60)
    with limit():
        second_in.set()
        thread.join(60)
        assert not thread.is_alive()
        assert threads_of_blas() == {1}
    assert threads_of_blas() == before


def test_an_error_ends_the_limit():
    before, limit = threads_of_blas(), OneThread()
    with pytest.raises(ZeroDivisionError):
        limit.wrap(lambda: 1 / 0)()
    assert threads_of_blas() == before
    assert limit.calls == 0


def test_another_thread_can_limit_after_the_first():
    """The library heeds one thread only, and that one must have let go."""
    limit, found = OneThread(), []

    def other():
        with limit():
            found.append(threads_of_blas())

    with limit():
        pass
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    assert found == [{1}]
