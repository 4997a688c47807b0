"""The command line as a user has it, without the seconds that a new process takes to start."""

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

import pytest

from bieqno.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


def _run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["bieqno", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Done(end.value.code or 0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def bieqno():
    """Runs ``bieqno`` with some arguments and gives back its exit code and what it wrote."""
    return _run
