"""Template, style and script of the page, as files."""

from importlib import resources


def asset(name: str) -> str:
    """The text of one of them."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
