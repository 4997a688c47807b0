"""One thread of BLAS for a while, also where several threads of Python ask for it at the same time.

Most builds of BLAS have one pool of threads in a process, and one limit. With `threadpoolctl` alone the first thread that is done
gives the limit back while others still compute: their sums are split otherwise from there on, and their last bits differ.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class OneThread:
    """Limits BLAS to one thread, from the first of several calls to the end of the last of them.

    Example:
        >>> limit = OneThread()
        >>> with limit(), limit():
        ...     limit.calls
        2
        >>> limit.calls
        0
    """

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()
        self._limit: Any = None

    @functools.cached_property
    def _libraries(self) -> tuple[Any, Any]:
        """Libraries whose threads belong to the process, and those where each thread has a limit of its own."""
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().select(user_api="blas")
        others = [one.filepath for one in found.lib_controllers if getattr(one, "threading_layer", "") != "pthreads"]
        return found.select(threading_layer="pthreads"), found.select(filepath=others)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the limit in a with-statement."""
        with self._lock:
            shared, own = self._libraries
            self.calls += 1
            if self.calls == 1:
                _take_control()
                self._limit = shared.limit(limits=1, user_api="blas")
        try:
            with own.limit(limits=1, user_api="blas"):
                yield
        finally:
            with self._lock:
                self.calls -= 1
                if not self.calls:
                    _take_control()
                    self._limit.restore_original_limits()
                    _take_control()  # and leave it to whoever is next

    def wrap(self, function: F) -> F:
        """Return a function that holds the limit while it runs."""

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            with self():
                return function(*args, **kwargs)

        return limited  # type: ignore[return-value]


def _take_control() -> None:
    """Let this thread set limits: since version 3.7 threadpoolctl accepts only the thread that did so before."""
    from threadpoolctl import OpenBLASController

    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


one_blas_thread = OneThread()  # of the whole process, so that all who ask are counted together
