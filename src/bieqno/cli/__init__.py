"""The `bieqno` command: parses, calls experiments or the library, prints."""

from bieqno.cli.main import app, main

__all__ = ["app", "main"]
