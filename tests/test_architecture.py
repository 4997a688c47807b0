"""The house keeps its order: imports point down, and the README's code runs as written."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bieqno"

# From the roof to the ground; a room may use the rooms below it and itself.
FLOORS = ["cli", "lab", "assimilation", "regression", "scores", "training", "persistence", "gaussian", "operators"]


def room(module):
    return module.split(".")[1] if "." in module else module


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "bieqno":
                yield from (f"bieqno.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    # The front door and the roof, what a user starts, see everything.
    if own in {"__init__", "public", "cli"}:
        return
    assert own in FLOORS, f"{own} has no floor yet: give it one in this test"
    for name in imports(path):
        if name.startswith("bieqno."):
            assert FLOORS.index(room(name)) >= FLOORS.index(own), f"{own} may not import {name}"


def test_readme_examples_run_as_written(tmp_path, monkeypatch):
    """Each by itself, with nothing but what it imports; in this process, whose imports have taken their seconds."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})


def test_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text().split("```")[1]
    assert "make demo" in head
    assert "make test" in head


def test_notation_names_what_exists():
    """Every identifier in the dictionary of symbols can be found in the source."""
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    table = re.findall(r"^\|[^|]*\|([^|]*)\|", (ROOT / "docs" / "notation.md").read_text(), re.MULTILINE)
    names = [name for cell in table for name in re.findall(r"`([A-Za-z_]+)", cell)]
    assert len(names) > 10
    for name in names:
        assert re.search(rf"\b{name}\b", source), f"docs/notation.md names {name}, which is nowhere"
