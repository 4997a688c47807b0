"""``bieqno list``, ``run`` and ``report``: studies, their results on disk, and the page."""

import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from bieqno.cli import INTERRUPTED
from bieqno.cli.output import LARGEST_SEED, Reporter, alone, choose_reporter, duration

EVERYTHING = "all"


def list_studies() -> None:
    """Show the studies: what each is about, what the paper claims, and about how long each preset takes.

    Example: bieqno list
    """
    from bieqno.lab.studies import EXPERIMENTS

    console = Console(highlight=False)
    columns = (Column("study", no_wrap=True), "what it is, and what the paper claims")
    table = Table(*columns, Column("about, on two cores", no_wrap=True), box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for name, study in EXPERIMENTS.items():
        about = study.description
        times = "\n".join(f"{preset:<6} {duration(60 * minutes)}" for preset, minutes in about.minutes.items())
        table.add_row(f"[bold]{name}", f"{about.title}.\n[dim]Claim:[/dim] {about.claim}", times)
    console.print(table)
    console.print("Run one with: bieqno run NAME --preset quick    (`all` for all but demo)")


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of the results.")] = Path("runs"),
    keep: Annotated[
        Path | None, typer.Option(help="Write a smaller page and all numbers as JSON to this folder.")
    ] = None,
) -> None:
    """Make report.html again from stored results, without computing anything; or a smaller page and numbers to keep.

    Examples: bieqno report runs / bieqno report runs --keep docs/results / bieqno report docs/results --keep docs/results
    """
    from bieqno.lab.report.kept import keep_results
    from bieqno.lab.report.page import write_page

    typer.echo(f"The page is {keep_results(folder, keep) if keep else write_page(folder)}")


def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As `bieqno list` shows them; all: all but demo.")],
    preset: Annotated[str, typer.Option(help="smoke, quick or paper.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of all random numbers.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs"),
    only: Annotated[list[str] | None, typer.Option(help="Only this method; can be given several times.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where the same run was interrupted.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print every event as a JSON line.")] = False,
) -> None:
    """Run studies, store their numbers, arrays and figures, and make the page.

    Examples: bieqno run demo / bieqno run lorenz63 step-1d --preset paper --resume / bieqno run all
    """
    from bieqno.lab.report.page import found_in, write_page

    studies = _chosen(names, preset, only or [])
    prepare_folder(out, studies)
    reporter = choose_reporter(quiet=quiet, log_json=log_json)
    seconds = 60.0 * sum(study.description.minutes[preset] for study in studies.values())
    text = f"{', '.join(studies)} at preset {preset}: about {duration(seconds)} on two quiet cores"
    reporter.report("start", text, experiments=list(studies), preset=preset, seed=seed, expected_seconds=seconds)
    missed: list[str] = []
    with alone(out):
        for study in studies.values():
            # Each study takes its own methods, so that the command stored with its result works.
            own = sorted(set(only or []) & set(study.description.methods))
            found = _run_study(study, preset, seed, out, own, resume, reporter)
            missed += (f"{study.name}, {miss}" for miss in found if preset != "smoke")  # which only shows that it runs
        page = write_page(out)
    for title, sentence in found_in(out):
        reporter.report("found", f"{title}: {sentence}", half=title)
    reporter.report("page", f"The page is {page}", path=str(page))
    if missed:
        raise ValueError("out of bounds: " + "; ".join(missed))


def _chosen(names: Sequence[str], preset: str, only: Sequence[str]) -> dict[str, Any]:
    """Return the named studies, each once; a wrong name of anything is wrong usage."""
    from bieqno.lab.studies import EXPERIMENTS
    from bieqno.lab.texts import did_you_mean

    wanted: list[str] = []
    for name in names:
        if name not in (*EXPERIMENTS, EVERYTHING):
            raise typer.BadParameter(f"there is no study {name!r}; {did_you_mean(name, [*EXPERIMENTS, EVERYTHING])}")
        wanted += [other for other in EXPERIMENTS if other != "demo"] if name == EVERYTHING else [name]
    chosen = {name: EXPERIMENTS[name] for name in wanted}
    for name, study in chosen.items():
        if preset not in study.presets:
            raise typer.BadParameter(f"{name} has no preset {preset!r}; {did_you_mean(preset, study.presets)}")
    methods = dict.fromkeys(method for study in chosen.values() for method in study.description.methods)
    if only and not methods:
        raise typer.BadParameter(f"the methods of {', '.join(chosen)} cannot be run one by one; leave out --only")
    for method in only:
        if method not in methods:
            raise typer.BadParameter(f"there is no method {method!r}; {did_you_mean(method, methods)}")
    # Of several studies those without the method are left out.
    return {name: study for name, study in chosen.items() if not only or set(only) & set(study.description.methods)}


def _run_study(
    study: Any, preset: str, seed: int, out: Path, only: list[str], resume: bool, reporter: Reporter
) -> Sequence[str]:
    """Run a study and write its result; return in what it is out of bounds."""
    from bieqno.lab.report.page import study_figures
    from bieqno.lab.report.tables import study_tables
    from bieqno.lab.results import DAMAGED
    from bieqno.lab.studies import Cases, provenance, read_result, run_key, write_result
    from bieqno.persistence.tensorfile import PersistenceError

    name = study.name
    config = provenance(name, study.modules, study.presets[preset], seed)
    chosen = "".join(f" --only {shlex.quote(method)}" for method in only)
    command = f"bieqno run {name} --preset {preset} --seed {seed}{chosen}"
    config |= {"only": only, "key": run_key(config), "command": command}
    old: Any = {}
    if resume:
        with suppress(*DAMAGED):  # a result that cannot be read is made again
            before = read_result(out / name)
            old = before.config
    if (old.get("key"), old.get("only")) == (config["key"], only):
        text = f"{name} is finished already, in {out / name}"
        reporter.report("already", text, experiment=name, folder=str(out / name))
        return study.misses(before)
    cases = Cases.beside(out, name, config["key"])
    if not resume:
        cases.remove()
    started, begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    try:
        with reporter.watch(name) as on_progress:
            result = study.run(preset, seed=seed, only=only, cases=cases, on_progress=on_progress)
        config |= {"started": started, "wall_seconds": round(time.perf_counter() - begun, 1)}
        result = replace(result, config={**config, "cases_resumed": len(cases.taken)})
        folder = write_result(result, out, study_figures(result))
    except KeyboardInterrupt:
        _print_how_to_resume(f"{name} was interrupted", cases.finished())
        raise typer.Exit(INTERRUPTED) from None
    except (OSError, PersistenceError) as error:
        _print_how_to_resume(f"{name} could not be stored", cases.finished())
        raise OSError(f"cannot write to {out}: {getattr(error, 'strerror', None) or error}") from error
    if not only:  # cases of some methods serve a later run of all
        cases.remove()
    Cases.remove_outdated(out, name, config["key"])
    for table in study_tables(result):
        reporter.report("table", table)
    took = config["wall_seconds"]
    text = f"{name} took {duration(took)}; its numbers, arrays and figures are in {folder}\n"
    reporter.report("result", text, experiment=name, folder=str(folder), seconds=took)
    return study.misses(result)


def _print_how_to_resume(what: str, count: int) -> None:
    kept = "no case was finished" if not count else f"{count} finished case{'s are' if count > 1 else ' is'} kept"
    again = shlex.join(["bieqno", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
    typer.echo(f"\n{what}; {kept}. Continue with: {again}", err=True)


def prepare_folder(out: Path, studies: Iterable[str]) -> None:
    """Make the folder of all results, or say why it cannot be used: it holds something else, or is not writable."""
    from bieqno.lab.report.page import PAGE_FILE
    from bieqno.lab.results import METRICS_FILE

    another = "choose another folder with --out"
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; {another}")
    entries = list(out.iterdir()) if out.is_dir() else []
    ours = (path.name == PAGE_FILE or path.suffix == ".cases" or (path / METRICS_FILE).exists() for path in entries)
    if entries and not any(ours):
        raise ValueError(f"{out} is not empty and holds no results of bieqno; {another}")
    for folder in (out / name for name in studies):
        if folder.exists() and not (folder / METRICS_FILE).exists():
            raise ValueError(f"{folder} is in the way and holds no result of bieqno; {another}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; {another}") from error
