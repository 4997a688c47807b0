"""What the API pages change in docstrings, whose style is a little shorter than the one that griffe reads."""

import re
from typing import Any

import griffe

SHARED = re.compile(r"^( +)(\*{0,2}\w+(?:, \*{0,2}\w+)+):( .*(?:\n\1 +.*)*)", re.MULTILINE)


def _one_each(found: re.Match[str]) -> str:
    """Return an entry for each of the parameters that share one: otherwise their types and defaults are not found."""
    indent, names, text = found.groups()
    return "\n".join(f"{indent}{name}:{text}" for name in names.split(", "))


class Examples(griffe.Extension):
    """Rename the section *Example*, and give parameters that are described together an entry each."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object once it has been read."""
        if obj.docstring is None:
            return
        text, examples, rest = obj.docstring.value.partition("\nExample:\n")
        head, arguments, body = text.partition("\nArgs:\n")
        obj.docstring.value = head + arguments + SHARED.sub(_one_each, body) + (examples and "\nExamples:\n") + rest
