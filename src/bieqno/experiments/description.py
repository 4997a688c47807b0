"""What an experiment says about itself, and how its settings are found by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from bieqno.nearest import unknown

S = TypeVar("S")


@dataclass(frozen=True)
class Description:
    """For lists and reports.

    Attributes:
        title: in a few words.
        question: what is asked, in two sentences that need no paper.
        claim: what the paper claims.
        minutes: about how long each preset takes on two quiet cores.
        methods: the names that can be chosen with ``--only``; empty if the methods cannot be run one by one.
    """

    title: str
    question: str
    claim: str
    minutes: Mapping[str, float]
    methods: tuple[str, ...] = ()


def settings_of(settings: S | str, presets: Mapping[str, S]) -> S:
    """The settings themselves, or the preset of that name.

    Raises:
        ValueError: if there is no such preset.
    """
    if not isinstance(settings, str):
        return settings
    if settings not in presets:
        raise ValueError(unknown("preset", settings, presets))
    return presets[settings]
