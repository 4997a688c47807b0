"""One thread of BLAS or OpenMP for a while, also where several threads of Python ask for it at the same time.

The limit belongs to the process. With `threadpoolctl` alone the first thread that is done gives it back while others still
compute: their sums are split otherwise from there on, and their last bits differ.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class OneThread:
    """Limits the threads of libraries to one, from the first of several calls to the end of the last of them.

    Args:
        api: of which libraries, ``blas`` or ``openmp``.

    Example:
        >>> limit = OneThread("blas")
        >>> with limit(), limit():
        ...     limit.calls
        2
        >>> limit.calls
        0
    """

    def __init__(self, api: str) -> None:
        self.api, self.calls = api, 0
        self._lock = threading.Lock()
        self._libraries: Any = None
        self._limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the limit in a with-statement."""
        from threadpoolctl import ThreadpoolController

        with self._lock:
            self.calls += 1
            if self.calls == 1:
                self._libraries = self._libraries or ThreadpoolController()  # looking for them takes milliseconds
                self._limit = self._libraries.limit(limits=1, user_api=self.api)
        try:
            yield
        finally:
            with self._lock:
                self.calls -= 1
                if not self.calls:
                    self._limit.restore_original_limits()

    def wrap(self, function: F) -> F:
        """Return a function that holds the limit while it runs."""

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            with self():
                return function(*args, **kwargs)

        return limited  # type: ignore[return-value]


# Of the whole process, so that all who ask are counted together.
one_blas_thread = OneThread("blas")
one_openmp_thread = OneThread("openmp")
