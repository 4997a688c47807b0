"""``bieqno evaluate``: held-out scores on a table of the user's own, against tuned Gaussian processes, on one page."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from bieqno.cli.own_data import FineTune, Inputs, Members, Prior, Seed, Start, Steps, Table, regressor_settings
from bieqno.cli.talk import check_writable, counting_bar, stoppable, warn


def evaluate_table(
    table: Table,
    target: Annotated[str, typer.Option("--target", help="The column to predict.")],
    out: Annotated[Path, typer.Option("--out", help="The page; the numbers go to a .json file beside it.")] = Path(
        "evaluation.html"
    ),
    inputs: Inputs = None,
    held_out: Annotated[float, typer.Option("--held-out", min=0.01, max=0.9, help="Share of rows to test on.")] = 0.2,
    most: Annotated[
        int, typer.Option("--most", min=3, help="Most rows to learn from; Gaussian processes of many rows take long.")
    ] = 500,
    prior: Start = Prior.functions,
    fine_tune: FineTune = False,
    steps: Steps = None,
    members: Members = None,
    seed: Seed = 0,
) -> None:
    """Compare bieqno's regressor with tuned Gaussian processes on held-out rows of a table.

    All methods learn from the same rows and are scored on the same others.

    Example: bieqno evaluate table.csv --target y --out evaluation.html
    """
    from bieqno.cli.tables import as_asked, read_table, training_columns
    from bieqno.lab.evaluation import LEVELS, evaluate, split_rows
    from bieqno.lab.jsontext import json_text
    from bieqno.lab.report.evaluation_page import evaluation_page, score_rows, verdict
    from bieqno.persistence.tensorfile import replace_file

    numbers_file = out.with_suffix(".json")
    if numbers_file == out:
        raise typer.BadParameter(f"--out names the page, such as {out.with_suffix('.html')}")
    check_writable(out, table)
    X, y = training_columns(read_table(table), target, inputs, table)
    if y.shape[1] > 1:
        raise ValueError(f"one target is evaluated at a time, got {', '.join(y)}")
    train, test = split_rows(len(X), held_out=held_out, most=most, seed=seed)
    if len(train) + len(test) < len(X):
        warn(f"{len(X) - len(train) - len(test)} rows are not used; --most {len(X) - len(test)} would use all")
    settings = regressor_settings(prior, fine_tune, steps, members, seed)
    with stoppable(lambda: "nothing was written"), counting_bar("evaluate") as on_progress:
        found = evaluate(X.to_numpy(), y.iloc[:, 0].to_numpy(), train, test, settings=settings, on_progress=on_progress)
    command = (
        f"bieqno evaluate {shlex.quote(str(table))} --target {shlex.quote(as_asked(y))} --inputs {shlex.quote(as_asked(X))} "
        f"--held-out {held_out:g} --most {most} --prior {prior}{' --fine-tune' if fine_tune else ''} "
        + "".join(f"--{name} {value} " for name, value in (("steps", steps), ("members", members)) if value is not None)
        + f"--seed {seed} --out {shlex.quote(str(out))}"
    )
    page = evaluation_page(found, source=table.name, target=str(y.columns[0]), inputs=list(X), command=command)
    content = {
        "table": str(table), "target": str(y.columns[0]), "inputs": list(X), "command": command,
        "rows_learned_from": found.trained, "rows_held_out": len(found.observed),
        "scores": {name: found.scores(name) for name in found.forecasts},
        "best_gaussian_process": found.opponent, "ggp_minus_best_gaussian_process": found.difference(),
        "levels": LEVELS.tolist(),
        "reliability": {name: found.reliability(name).tolist() for name in found.forecasts},
    }  # fmt: skip
    replace_file(numbers_file, json_text(content).encode())
    replace_file(out, page.encode())
    headings, rows, _ = score_rows(found)
    shown = RichTable(*headings, box=None, padding=(0, 1), pad_edge=False)
    for row in rows:
        shown.add_row(*row)
    Console(width=110).print(shown)
    typer.echo(verdict(found))
    typer.echo(f"written to {out} and {numbers_file}")
