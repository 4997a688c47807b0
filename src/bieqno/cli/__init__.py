"""The command `bieqno`: parse, call, print."""

import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["INTERRUPTED", "interrupt_quietly", "main"]

INTERRUPTED = 130  # exit code that shells expect of a program that Ctrl-C ended


def interrupt_quietly() -> None:
    """Let Ctrl-C end the process at once while modules are imported, which takes the first seconds of a command.

    Raised there, KeyboardInterrupt is a traceback through modules of others; some of them, written in C++, abort the process
    or swallow it. Nothing is written while modules are imported. Later it is raised as usual.
    """
    # Another program that calls this may have its own way, and only a main thread is told of signals.
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    inner = frame
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    signal.default_int_handler(number, inner)


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
