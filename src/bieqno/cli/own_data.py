"""``bieqno fit`` and ``bieqno predict``: regression on tables of the user's own."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bieqno.cli.talk import check_writable, on_terminal, stoppable

Table = Annotated[Path, typer.Argument(help="CSV or Parquet file; the first line of a CSV names the columns.")]
Target = Annotated[str, typer.Option("--target", help="The column to predict, or several: y,z.")]
Inputs = Annotated[
    str | None,
    typer.Option("--inputs", help="Columns to predict from: a,b. All other columns of numbers if not given."),
]


class Prior(StrEnum):
    """What a fit starts from."""

    functions = "functions"
    experts = "experts"
    none = "none"


Start = Annotated[
    Prior,
    typer.Option(
        "--prior",
        help="Start from what was learned on many functions, from a mixture of local Gaussian processes, or from nothing: "
        "a training on the table alone, of some minutes.",
    ),
]
FineTune = Annotated[
    bool, typer.Option("--fine-tune", help="Train the prior on the table, if that helps with rows that are left out.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Most training steps, with --prior none; 2000.")]
Members = Annotated[int | None, typer.Option("--members", min=1, help="Networks in its ensemble; 5.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="What everything random grows from.")]


def fit(
    table: Table,
    target: Target,
    out: Annotated[Path, typer.Option("--out", help="File of the fitted model.")] = Path("model.bieqno"),
    inputs: Inputs = None,
    prior: Start = Prior.functions,
    fine_tune: FineTune = False,
    steps: Steps = None,
    members: Members = None,
    seed: Seed = 0,
) -> None:
    """Fit a generalized Gaussian process to a table, and save it with the names of its columns.

    Rows with a missing value are left out and counted; so are columns without numbers.

    Example: bieqno fit table.csv --target y --inputs a,b --out model.bieqno
    """
    from bieqno.cli.tables import read_table, training_columns
    from bieqno.regression import GGPRegressor

    check_writable(out, table)
    frame = read_table(table)
    X, y = training_columns(frame, target, inputs, table)
    model = GGPRegressor(**regressor_settings(prior, fine_tune, steps, members, seed), verbose=on_terminal())
    with stoppable(lambda: "nothing was written"):
        model.fit(X, y if y.shape[1] > 1 else y.iloc[:, 0])
    model.save(out)
    trained = f"{model.n_iter_} training steps" if model.n_iter_ else f"from the prior {prior} as it is"
    typer.echo(f"fitted {', '.join(y)} from {', '.join(X)} on {len(X)} rows, {trained}")
    typer.echo(f"rows that were held out:\n{model.summary()}")
    typer.echo(f"written to {out}")


def regressor_settings(
    prior: Prior, fine_tune: bool, steps: int | None, members: int | None, seed: int
) -> dict[str, Any]:
    """The settings of a `GGPRegressor` that were asked for; those of a training go with no prior."""
    training = {"max_steps": steps, "members": members}
    given = {name: value for name, value in training.items() if value is not None}
    if given and prior is not Prior.none:
        raise typer.BadParameter("--steps and --members are of a training on the table alone: add --prior none")
    if fine_tune and prior is Prior.none:
        raise typer.BadParameter("--fine-tune needs a prior to begin with: leave --prior none out")
    return {"prior": None if prior is Prior.none else str(prior), "fine_tune": fine_tune, "random_state": seed, **given}


def predict(
    model: Annotated[Path, typer.Argument(help="File that `bieqno fit` wrote.")],
    table: Table,
    out: Annotated[Path, typer.Option("--out", help="CSV or Parquet file of the predictions.")] = Path(
        "predictions.csv"
    ),
    quantiles: Annotated[str, typer.Option("--quantiles", help="Probabilities between 0 and 1.")] = "0.05,0.5,0.95",
    samples: Annotated[int, typer.Option("--samples", min=0, help="Joint draws of all rows, one column each.")] = 0,
    seed: Seed = 0,
) -> None:
    """Predict new noisy values: mean, standard deviation, quantiles and joint draws.

    The columns of the table are found by name and kept; those that the model does not know are not used. With several
    targets the new columns begin with the target's name. A model file holds numbers only, nothing in it is run.

    Example: bieqno predict model.bieqno new.csv --out out.csv --samples 10
    """
    import numpy as np
    import pandas as pd

    from bieqno.cli.predicting import known_inputs, predictions
    from bieqno.cli.tables import complete_rows, numbers, read_table, write_table
    from bieqno.regression import GGPRegressor

    check_writable(out, model, table)
    probabilities = _probabilities(quantiles)
    fitted = GGPRegressor.load(model)
    frame = read_table(table)
    X = numbers(frame, known_inputs(fitted, frame, model, table), table)
    keep = complete_rows(X, table, what="predicted as empty")
    points = X[keep] if hasattr(fitted, "feature_names_in_") else X[keep].to_numpy()
    with stoppable(lambda: "nothing was written"):
        predicted = predictions(fitted, points, probabilities, samples, seed)
    clash = [name for name in predicted.columns if name in frame.columns]
    if clash:
        raise ValueError(f"{table} already has a column {clash[0]!r}, which is the name of a prediction; rename it")
    everywhere = predicted.set_index(np.flatnonzero(keep)).reindex(range(len(frame)))
    write_table(out, pd.concat([frame.reset_index(drop=True), everywhere], axis=1))
    typer.echo(
        f"{keep.sum()} rows predicted, written to {out}: {', '.join(predicted.columns[:8])}" + ", ..." * (samples > 3)
    )


def _probabilities(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [math.nan]
    if not all(0 < value < 1 for value in values):
        raise typer.BadParameter(f"probabilities lie between 0 and 1, as in 0.05,0.5,0.95; got {text!r}")
    return values
