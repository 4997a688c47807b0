"""README and docs say what is true: their code runs, their commands exist, their links lead somewhere."""

import importlib.util
import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml

import bieqno.assimilation
from bieqno.assimilation import System
from bieqno.assimilation.conditions import conditions_of
from bieqno.assimilation.objectives.objective import Objective
from bieqno.assimilation.training import FilterResult, HasBase
from bieqno.cli.__main__ import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TRAIN = bieqno.assimilation.train_filter
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def blocks(page, *languages):
    """The blocks of a page in some languages, each with the number of lines before it."""
    text = page.read_text()
    return [(m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text) if m[1] in languages]


def no_training(student, system, objective, **settings):
    """What `train_filter` gives after no step at all, for the arguments that it takes: training has tests of its own."""
    inspect.signature(TRAIN).bind(student, system, objective, **settings)
    assert isinstance(objective, Objective)
    assert isinstance(system, System)
    if isinstance(student, HasBase):
        first = {name: values[0] for name, values in student.base_settings.items()}
        student = student.begin_with(dict.fromkeys(objective.sizes, first)).trained_for(conditions_of(system))
    nothing = np.zeros(0)
    return FilterResult(student, nothing, nothing, 0, 0, False, None, errors=dict.fromkeys(objective.sizes, (1.0, 1.0)))


def examples(page):
    """The examples of a page; those of the README, which the home page repeats, are run once."""
    known = [block for block, _ in blocks(ROOT / "README.md", "python")] if page.name != "README.md" else []
    return [(block, before) for block, before in blocks(page, "python") if block not in known]


FIRST = ("README", "index", "regression_in_five_minutes", "assimilation_in_five_minutes")  # what a new user copies from
WITH_EXAMPLES = [
    pytest.param(page, marks=[] if page.stem in FIRST else pytest.mark.long, id=page.stem)
    for page in PAGES
    if examples(page)
]


@pytest.mark.standard_promotion("examples are run as users run them")
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    """As written, but for trainings, which are left out; a page's blocks share their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in re.findall(r'^```python title="(.*?)"\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(content)  # which others of the page may import
    monkeypatch.setattr(bieqno.assimilation, "train_filter", no_training)
    names = {"__name__": "__main__", "__file__": str(tmp_path / "example.py")}
    for block, before in examples(page):
        exec(compile("\n" * before + block, page, "exec"), names)


def commands(page):
    """The commands that a page shows, continued lines joined."""
    for block, _ in blocks(page, "console"):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))
    for block, _ in blocks(page, "sh"):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#"))


@each_page
def test_the_commands_of_a_page_exist(page):
    """Their names and options; nothing is run."""
    group = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands(page):
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= targets, line
        elif program == "bieqno":
            arguments = [word for word in arguments if word != "--debug"]
            group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        elif program == "python":
            assert (ROOT / arguments[0]).exists() or f'title="{arguments[0]}"' in page.read_text(), line


@each_page
def test_blocks_name_their_language_and_prompts_are_consoles(page):
    for match in FENCE.finditer(page.read_text()):
        assert match[1], f"{page.name}: a block names no language: {match[2][:60]}"
        assert match[1] == "console" or "\n$ " not in f"\n{match[2]}", f"{page.name}: {match[2][:60]}"


@each_page
def test_the_links_of_a_page_lead_to_files(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#", "mailto")):
            found = page.parent / target.split("#")[0]
            example = re.fullmatch(r".*images/examples/(\w+)\.png", target)
            assert found.exists() or (example and (ROOT / "examples" / f"{example[1]}.py").exists()), target


def leaves(nav):
    for entry in nav:
        for target in entry.values():
            yield from leaves(target) if isinstance(target, list) else [target]


def test_every_page_is_in_the_navigation():
    """Zensical says nothing of pages that are missing there."""
    listed = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)


def test_the_site_leaves_out_pages_that_are_not_there_and_loads_nothing_from_elsewhere(tmp_path):
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    nav = [{"Home": "index.md"}, {"Guides": [{"None": "nowhere.md"}]}, {"More": [{"None": "no.md"}, {"API": "api.md"}]}]
    assert site.present(nav) == [{"Home": "index.md"}, {"More": [{"API": "api.md"}]}]
    page = tmp_path / "page.html"
    page.write_text('<a href="https://arxiv.org">a link is fine</a> <script src="assets/own.js"></script>')
    site.check_self_contained(tmp_path)
    page.write_text('<script async src="https://unpkg.com/mermaid"></script>')
    with pytest.raises(SystemExit, match=r"page\.html loads from elsewhere: <script async"):
        site.check_self_contained(tmp_path)


def test_a_study_that_does_not_exist_is_answered_as_the_readme_says(tmp_path, monkeypatch, capsys):
    shown = (ROOT / "README.md").read_text()
    answer = re.search(r"\$ bieqno run lorens63\n(?:Invalid value: )?(.*)\n", shown)[1]
    with pytest.raises(Exception, match=re.escape(answer)):
        app(["run", "lorens63", "--out", str(tmp_path / "runs")], standalone_mode=False)
