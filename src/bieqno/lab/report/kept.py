"""Results that are kept with the documentation: the page without its largest figures, and the numbers of each study as JSON.

``STUDY.json`` has the rows of ``metrics.json`` and what of ``config.json`` says how they were made, the folder ``STUDY`` the
smaller of its figures. What was kept earlier stays on the page; methods that ``--only`` has run join the others of their study,
and their figures take the place of earlier ones, unless they show one method alone.
"""

import json
import math
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from bieqno.lab.report.page import build_page, place_of, results_in
from bieqno.lab.results import Result, Row
from bieqno.lab.studies import EXPERIMENTS
from bieqno.lab.texts import json_text
from bieqno.persistence.tensorfile import replace_file

PAGE_FILE = "index.html"
_MADE = ("command", "started", "wall_seconds", "cases_resumed", "commit", "code")
_ORIGIN = (*_MADE, "versions", "settings", "only")
_MOST_NUMBERS = 4e3  # of a figure: those with more are most of the page, but for Plotly
_MOST_BYTES = 200_000  # of a figure as PNG


def keep_results(folder: str | os.PathLike[str], kept: str | os.PathLike[str]) -> Path:
    """Write the page and the numbers of all results to `kept`, beside those kept earlier; of the same folder the page alone."""
    target = Path(kept)
    again = target.resolve() == Path(folder).resolve() and any(_ours(path) for path in target.glob("*.json"))
    if target.resolve() == Path(folder).resolve() and any(target.glob("*/metrics.json")):
        raise ValueError(
            f"{folder} holds results as studies write them, which would be lost; keep them in another folder"
        )
    found = [] if again else results_in(folder)
    new = [(replace(result, config=_origin(result.config)), figures) for result, figures in found]
    page_file = target / PAGE_FILE
    if page_file.exists() and "<title>bieqno" not in page_file.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{page_file} is not a page of bieqno, and would be overwritten; choose another folder")
    new = [_joined(result, figures, target) for result, figures in new]
    names = {result.experiment for result, _ in new}
    earlier = [read_kept(path) for path in sorted(target.glob("*.json")) if path.stem not in names and _ours(path)]
    page = build_page(sorted([*earlier, *new], key=lambda pair: place_of(pair[0].experiment)), _MOST_NUMBERS)
    target.mkdir(parents=True, exist_ok=True)
    for result, figures in new:
        replace_file(target / f"{result.experiment}.json", _numbers(result).encode())
        shutil.rmtree(target / result.experiment, ignore_errors=True)
        for name, image in figures.items():
            if len(image) <= _MOST_BYTES:
                (target / result.experiment).mkdir(exist_ok=True)
                replace_file(target / result.experiment / f"{name}.png", image)
    replace_file(page_file, page.encode())
    return page_file


def _joined(result: Result, figures: dict[str, bytes], target: Path) -> tuple[Result, dict[str, bytes]]:
    """Return a result of some methods beside the others that were kept of the study, and under `parts` how these were made."""
    only, path = result.config.get("only"), target / f"{result.experiment}.json"
    if not only or not path.exists():
        return result, figures
    kept, old_figures = read_kept(path)
    wanted = (result.preset, result.seed, json.loads(json.dumps(result.config.get("settings"))))
    if wanted != (kept.preset, kept.seed, _settings(kept)):
        raise ValueError(f"{path} was made with other settings than the result with --only; run the whole study")
    rows = [row for row in kept.rows if not _is_of(row, only)] + [row for row in result.rows if _is_of(row, only)]
    earlier = [(part, [name for name in part["only"] if name not in only]) for part in kept.config.get("parts", ())]
    parts = [{**part, "only": left} for part, left in earlier if left]
    own = {name: result.config[name] for name in (*_MADE, "only") if name in result.config}
    shown = old_figures | figures if len(only) > 1 else figures | old_figures
    return replace(kept, rows=tuple(rows), config={**kept.config, "parts": [*parts, own]}), shown


def _is_of(row: Row, methods: Collection[str]) -> bool:
    """Return whether a row is of one of some methods, or of one in a role (`EnNF as ETKF`)."""
    return any(row.method == name or row.method.startswith(f"{name} as ") for name in methods)


def _settings(kept: Result) -> dict[str, Any] | None:
    """Return the settings of what was kept; those that the study did not have yet were at their defaults."""
    stored, study = kept.config.get("settings"), EXPERIMENTS.get(kept.experiment)
    preset = study.presets.get(kept.preset) if study else None
    if stored is None or preset is None:
        return stored
    new = {field.name: field.default for field in fields(preset) if field.name not in stored}
    return json.loads(json.dumps({name: value for name, value in new.items() if value is not MISSING})) | stored


def read_kept(path: Path) -> tuple[Result, dict[str, bytes]]:
    """Return the numbers of a study that were kept, with their origin, and its figures by name."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = (Row(**row | {"value": math.nan if row["value"] is None else row["value"]}) for row in stored.pop("rows"))
    result = Result(stored["experiment"], stored["preset"], stored["seed"], tuple(rows), config=stored)
    return result, {file.stem: file.read_bytes() for file in sorted(path.with_suffix("").glob("*.png"))}


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
