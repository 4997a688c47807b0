"""How ``bieqno run`` goes from names to results: what is meant, run, stored, told, and gone on with."""

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from bieqno.cli.folders import prepare
from bieqno.cli.telling import Teller, duration, teller
from bieqno.lab.nearest import unknown
from bieqno.lab.report.figures import study_figures
from bieqno.lab.report.page import write_page
from bieqno.lab.report.tables import study_tables
from bieqno.lab.studies import EXPERIMENTS, Cases, Experiment, provenance, read_result, run_key, write_result
from bieqno.persistence.tensorfile import PersistenceError

EVERYTHING = "all"
INTERRUPTED = 130  # what a shell calls a program that Ctrl-C ended


def run_experiments(
    names: Sequence[str],
    preset: str,
    *,
    seed: int,
    out: Path,
    only: Sequence[str],
    resume: bool,
    quiet: bool,
    log_json: bool,
) -> None:
    """Run the experiments of some names one after another, and make the page; see ``bieqno run --help``."""
    experiments = _chosen(names, preset, only)
    prepare(out, experiments)
    tell = teller(quiet=quiet, log_json=log_json)
    seconds = 60.0 * sum(experiment.description.minutes[preset] for experiment in experiments.values())
    tell.say("start", f"{', '.join(experiments)} at preset {preset}: about {duration(seconds)} on two quiet cores",
             experiments=list(experiments), preset=preset, seed=seed, expected_seconds=seconds)  # fmt: skip
    for experiment in experiments.values():
        # Of the methods each takes its own, so that the command that it keeps is one that works.
        own = sorted(set(only) & set(experiment.description.methods))
        _run_one(experiment, preset, seed, out, own, resume, tell)
    page = write_page(out)
    tell.say("page", f"The page is {page}", path=str(page))


def _chosen(names: Sequence[str], preset: str, only: Sequence[str]) -> dict[str, Experiment[Any]]:
    """The experiments that are meant, each once; a wrong name of anything is wrong usage."""
    wanted: list[str] = []
    for name in names:
        if name not in (*EXPERIMENTS, EVERYTHING):
            raise typer.BadParameter(unknown("experiment", name, [*EXPERIMENTS, EVERYTHING]))
        wanted += [other for other in EXPERIMENTS if other != "demo"] if name == EVERYTHING else [name]
    chosen = {name: EXPERIMENTS[name] for name in wanted}
    for name, experiment in chosen.items():
        if preset not in experiment.presets:
            raise typer.BadParameter(f"{name}: {unknown('preset', preset, experiment.presets)}")
    methods = dict.fromkeys(m for experiment in chosen.values() for m in experiment.description.methods)
    if only and not methods:
        raise typer.BadParameter(f"the methods of {', '.join(chosen)} cannot be run one by one; leave out --only")
    for method in only:
        if method not in methods:
            raise typer.BadParameter(unknown("method", method, methods))
    # Of several experiments those that do not have the method are left out.
    return {name: e for name, e in chosen.items() if not only or set(only) & set(e.description.methods)}


def _run_one(
    experiment: Experiment[Any], preset: str, seed: int, out: Path, only: list[str], resume: bool, tell: Teller
) -> None:
    name = experiment.name
    config = provenance(name, experiment.presets[preset], seed)
    config |= {"only": only, "key": run_key(config), "command": _command(name, preset, seed, only)}
    if resume and _is_finished(out / name, config["key"], only):
        tell.say("already", f"{name} is finished already, in {out / name}", experiment=name, folder=str(out / name))
        return
    cases = Cases.beside(out, name, config["key"])
    if not resume:
        cases.remove()
    started, begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    try:
        with tell.watch(name) as on_progress:
            result = experiment.run(preset, seed=seed, only=only, cases=cases, on_progress=on_progress)
        config |= {"started": started, "wall_seconds": round(time.perf_counter() - begun, 1)}
        result = replace(result, config={**config, "cases_resumed": len(cases.taken)})
        folder = write_result(result, out, study_figures(result))
    except KeyboardInterrupt:
        _tell_how_to_go_on(f"{name} was interrupted", cases)
        raise typer.Exit(INTERRUPTED) from None
    except (OSError, PersistenceError) as error:
        _tell_how_to_go_on(f"{name} could not be stored", cases)
        raise OSError(f"cannot write to {out}: {getattr(error, 'strerror', None) or error}") from error
    cases.remove()
    Cases.remove_outdated(out, name, config["key"])
    for table in study_tables(result):
        tell.say("table", table)
    tell.say("result", f"{name} took {duration(config['wall_seconds'])}; its numbers, arrays and figures are in {folder}\n",
             experiment=name, folder=str(folder), seconds=config["wall_seconds"])  # fmt: skip


def _is_finished(folder: Path, key: str, only: list[str]) -> bool:
    """Whether there is a whole result of that very run; one that cannot be read is made again."""
    try:
        config = read_result(folder).config
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return config.get("key") == key and config.get("only") == only


def _command(name: str, preset: str, seed: int, only: Sequence[str]) -> str:
    chosen = "".join(f" --only {shlex.quote(method)}" for method in only)
    return f"bieqno run {name} --preset {preset} --seed {seed}{chosen}"


def _tell_how_to_go_on(what: str, cases: Cases) -> None:
    count = cases.finished()
    kept = "no case was finished" if not count else f"{count} finished case{'s are' if count > 1 else ' is'} kept"
    again = shlex.join(["bieqno", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
    typer.echo(f"\n{what}; {kept}. Go on with: {again}", err=True)
