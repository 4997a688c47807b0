"""``python -m bieqno.cli``: the same as ``bieqno``."""

from bieqno.cli.main import main

main()
