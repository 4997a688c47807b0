"""The command `bieqno`: parse, call, print."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; without the extra `lab`, which brings its packages, print how to install it."""
    try:
        from bieqno.cli.__main__ import run_app
    except ModuleNotFoundError as error:
        if (error.name or "bieqno").split(".")[0] == "bieqno":
            raise
        sys.exit(f'bieqno: the command needs {error.name}, which is not installed: pip install "bieqno[lab]"')
    run_app()
