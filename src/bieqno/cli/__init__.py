"""The command `bieqno`: parse, call, print."""

import math
import os
import signal
import sys
import threading
import time
from types import FrameType

__all__ = ["INTERRUPTED", "interrupt_quietly", "main"]

INTERRUPTED = 130  # exit code that shells expect of a program that Ctrl-C ended
LONGEST_IMPORT = 5.0  # seconds


class _Interrupts:
    """What Ctrl-C does: it is raised as usual, but never inside an import.

    Raised there, KeyboardInterrupt is a traceback through modules of others; some of them, written in C++, abort the process
    or swallow it. In the first imports, where nothing was done yet, it ends the process at once. Commands import more in their
    course, when there may be a bar on the terminal and results to report: then it is raised at the end of that import.
    """

    begun = False  # whether a command runs
    deadline = math.inf  # when an import that continues is not waited for any longer

    def __call__(self, number: int, frame: FrameType | None) -> None:
        inner, now = frame, time.monotonic()
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is None:
            self.deadline = math.inf
            signal.default_int_handler(number, inner)
        self.deadline = min(self.deadline, now + LONGEST_IMPORT)
        if not self.begun or now > self.deadline:
            os._exit(INTERRUPTED)
        again = threading.Timer(0.05, _interrupt_main_thread, (number,))
        again.daemon = True
        again.start()


def _interrupt_main_thread(number: int) -> None:
    """Send the signal to the main thread: raised in another one, it would not wake the main thread from a sleep or a wait."""
    if hasattr(signal, "pthread_kill"):  # not on Windows
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


_interrupts = _Interrupts()


def interrupt_quietly(*, begun: bool = False) -> None:
    """Keep Ctrl-C from imports, which take the first seconds of a command; `begun` says that the command itself runs now."""
    _interrupts.begun = begun
    # Another program that calls this may have its own handler, and only a main thread receives signals.
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupts)


def main() -> None:
    """Run the command; without the extra `lab`, which brings its packages, print how to install it."""
    interrupt_quietly()
    try:
        from bieqno.cli.__main__ import run_app
    except ModuleNotFoundError as error:
        if (error.name or "bieqno").split(".")[0] == "bieqno":
            raise
        sys.exit(f'bieqno: the command needs {error.name}, which is not installed: pip install "bieqno[lab]"')
    run_app()
