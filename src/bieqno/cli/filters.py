"""The neural filter of a set-up: trained with a bar, or read from a file and checked."""

from pathlib import Path

import jax
import typer

from bieqno.assimilation import EnNF, Filter, load_filter
from bieqno.cli.progress import training_bar
from bieqno.cli.talk import on_terminal, warn
from bieqno.lab.system_files import OwnSetup, learn, lessons_of


def trained(own: OwnSetup, *, checkpoint: Path | None = None) -> EnNF:
    """The filter of a set-up, trained with a bar, and on from what is in the folder of checkpoints."""
    lesson_key, train_key = jax.random.split(jax.random.fold_in(jax.random.key(own.tables.seed), 1))
    lessons = lessons_of(own, key=lesson_key)
    total = lessons.runs + lessons.left_out
    if lessons.left_out:
        warn(f"{lessons.left_out} of {total} runs of the teacher diverged or lost the truth and are left out")
    with training_bar("training", visible=on_terminal()) as on_progress:
        filter = learn(own, lessons, key=train_key, checkpoint=checkpoint, on_progress=on_progress)
    typer.echo(
        f"trained on {lessons.prior.shape[0]} analyses of {lessons.prior.shape[1]} members ({lessons.runs} truths)"
    )
    return filter


def fitting_filter(path: Path, own: OwnSetup) -> Filter:
    """A saved filter, if it fits the set-up.

    Raises:
        ValueError: if it was made for another number of observed values or variables.
    """
    filter = load_filter(path)
    if isinstance(filter, EnNF):
        variables = None if filter.weights is None else len(filter.weights[0])
        if filter.observations != own.observed or variables not in {None, len(own.state)}:
            raise ValueError(
                f"{path} was trained for {filter.observations} observed values"
                + (f" of {variables} variables" if variables is not None else "")
                + f", {own.path} has {own.observed} of {len(own.state)}; train it anew"
            )
    if not callable(filter):
        raise ValueError(f"{path} holds a {type(filter).__name__}, not a filter")
    return filter
