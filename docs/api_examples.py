"""What the API pages change in docstrings: griffe renders the section *Examples*, ours are called *Example*."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rename the section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object once it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
