"""Results that are kept with the documentation: the page without its largest figures, and the numbers of each study as JSON.

``STUDY.json`` has the rows of ``metrics.json`` and what of ``config.json`` says how they were made.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bieqno.lab.report.page import build_page, results_in
from bieqno.lab.results import Result
from bieqno.lab.texts import json_text
from bieqno.persistence.tensorfile import replace_file

PAGE_FILE = "index.html"
_ORIGIN = ("command", "started", "wall_seconds", "cases_resumed", "commit", "code", "versions", "settings")
_MOST_NUMBERS = 4e3  # of a figure: those with more are most of the page, but for Plotly


def keep_results(folder: str | os.PathLike[str], kept: str | os.PathLike[str]) -> Path:
    """Write the page and the numbers of all results in a folder to another one, and return the page.

    ValueError if there are numbers already of a study that is not among the results: the page would lack them.
    """
    found = [(replace(result, config=_origin(result.config)), figures) for result, figures in results_in(folder)]
    target = Path(kept)
    numbers = {target / f"{result.experiment}.json": result for result, _ in found}
    others = sorted(path.name for path in target.glob("*.json") if path not in numbers and _ours(path))
    if others:
        raise ValueError(
            f"{target} holds {', '.join(others)}, of which {folder} has no result; remove or run what is missing"
        )
    page_file = target / PAGE_FILE
    if page_file.exists() and "<title>bieqno" not in page_file.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{page_file} is not a page of bieqno, and would be overwritten; choose another folder")
    page = build_page(found, _MOST_NUMBERS)
    target.mkdir(parents=True, exist_ok=True)
    for path, result in numbers.items():
        replace_file(path, _numbers(result).encode())
    replace_file(page_file, page.encode())
    return page_file


def _ours(path: Path) -> bool:
    """Return whether a file holds the numbers of a study."""
    try:
        return {"experiment", "rows"} <= set(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return False


def _numbers(result: Result) -> str:
    """Return rows and origin as JSON; each row is one line, so that a change can be read."""
    metrics = result.metrics()
    rows = ",\n".join(json.dumps(row, allow_nan=False) for row in metrics.pop("rows"))
    about = json_text({**metrics, **result.config}).removesuffix("\n}\n")
    return f'{about},\n "rows": [\n{rows}\n ]\n}}\n'


def _origin(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what says how a result was made, with the kind of machine but not its build."""
    platform = dict(config.get("platform", {}))
    if "system" in platform:
        platform["system"] = platform["system"].partition("-")[0]
    return {name: config[name] for name in _ORIGIN if name in config} | {"platform": platform}
