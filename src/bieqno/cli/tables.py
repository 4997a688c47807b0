"""``bieqno fit``, ``predict`` and ``evaluate``: regression on the user's own tables."""

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bieqno.cli import output

if TYPE_CHECKING:
    import pandas as pd

TableFile = Annotated[Path, typer.Argument(help="CSV, Parquet or Excel file; its first line names the columns.")]
Inputs = Annotated[str | None, typer.Option("--inputs", help="Columns to predict from: a,b; by default all numeric.")]
Trained = Annotated[bool, typer.Option("--trained", help="Train a regressor on the table alone; takes minutes.")]
NoCorrection = Annotated[bool, typer.Option("--no-correction", help="Kriging experts without the learned correction.")]
FineTune = Annotated[bool, typer.Option("--fine-tune", help="Train the correction on the table, if that helps.")]
TargetTransform = Annotated[str, typer.Option("--transform", help="Of skewed targets: auto, if that helps, or none.")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Most training steps, with --trained; 2000.")]
Members = Annotated[int | None, typer.Option("--members", min=1, help="Networks in its ensemble, with --trained; 5.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=output.LARGEST_SEED, help="Seed of all random numbers.")]


def fit(
    table: TableFile,
    target: Annotated[str, typer.Option("--target", help="The column to predict, or several: y,z.")],
    out: Annotated[Path, typer.Option("--out", help="File of the fitted model.")] = Path("model.bieqno"),
    inputs: Inputs = None,
    trained: Trained = False,
    no_correction: NoCorrection = False,
    fine_tune: FineTune = False,
    transform: TargetTransform = "auto",
    steps: Steps = None,
    members: Members = None,
    seed: Seed = 0,
) -> None:
    """Fit a regressor with calibrated uncertainty to a table, and save it with the names of its columns.

    The pretrained regressor is the default; it takes seconds. --trained trains one on the table alone.
    Rows without a target are left out and counted; missing inputs are used as such. Columns of few different texts are
    categories, and dates are dates, for the pretrained regressor; other columns without numbers are left out.

    Example: bieqno fit table.csv --target y --inputs a,b --out model.bieqno
    """
    model = _regressor(trained, no_correction, fine_tune, steps, members, seed, transform)
    from bieqno.cli.table_files import read_table, training_columns
    from bieqno.regression.frames import FrameEncoder

    output.check_writable(out, table)
    X, y = training_columns(read_table(table), target, inputs, table, texts=not trained)
    with output.interruptible(), output.training_bar("training") as on_progress:
        model.set_params(on_progress=on_progress).fit(X, y if y.shape[1] > 1 else y.iloc[:, 0])
    if model.encoder_ is None:  # all are numbers; of new rows some may be missing
        model.encoder_ = FrameEncoder.of_all(X)
    model.save(out)
    typer.echo(f"fitted {', '.join(y)} from {', '.join(X)} on {len(X)} rows: {_description(model)}")
    typer.echo(f"held-out rows:\n{model.summary()}\nwritten to {out}")


def predict(
    model: Annotated[Path, typer.Argument(help="File that `bieqno fit` wrote.")],
    table: TableFile,
    out: Annotated[Path, typer.Option("--out", help="CSV, Parquet or Excel file; - for standard output.")] = Path(
        "predictions.csv"
    ),
    quantiles: Annotated[str, typer.Option("--quantiles", help="Probabilities between 0 and 1.")] = "0.05,0.5,0.95",
    samples: Annotated[int, typer.Option("--samples", min=0, help="Joint samples of all rows, one column each.")] = 0,
    seed: Seed = 0,
) -> None:
    """Predict new noisy values: mean, standard deviation, quantiles and joint samples.

    The columns of the table are found by name and kept; those that the model does not know are not used. With several
    targets the new columns begin with the target's name. A model file holds numbers only, nothing in it is run.

    Example: bieqno predict model.bieqno new.csv --out out.csv --samples 10
    """
    try:
        probabilities = [float(part) for part in quantiles.split(",") if part.strip()]
    except ValueError:
        probabilities = [math.nan]
    if not all(0 < value < 1 for value in probabilities):
        raise typer.BadParameter(f"probabilities lie between 0 and 1, as in 0.05,0.5,0.95; got {quantiles!r}")
    import numpy as np
    import pandas as pd

    from bieqno.cli.table_files import STANDARD_OUTPUT, complete_rows, known_inputs, numbers, read_table, write_table
    from bieqno.regression import load_regressor

    if str(out) != STANDARD_OUTPUT:
        output.check_writable(out, model, table)
    fitted = load_regressor(model)
    frame = read_table(table)
    if samples:
        from bieqno.lab.system_files.reading import check_memory

        check_memory("--samples", 2 * len(frame) * samples)  # of eight bytes
    coded = () if fitted.encoder_ is None else [one.name for one in fitted.encoder_.columns if one.kind != "number"]
    X = numbers(frame, known_inputs(fitted, frame, model, table), table, coded)
    # A model that was fitted in Python to an array does not know what a missing value may be.
    keep = complete_rows(X, table, what="predicted as empty") if fitted.encoder_ is None else np.ones(len(X), bool)
    points = X[keep] if hasattr(fitted, "feature_names_in_") else X[keep].to_numpy()
    with output.interruptible():
        predicted = _predictions(fitted, points, probabilities, samples, seed)
    for name in predicted.columns.intersection(frame.columns):
        raise ValueError(f"{table} already has a column {name!r}, which is the name of a prediction; rename it")
    all_rows = predicted.set_index(np.flatnonzero(keep)).reindex(range(len(frame)))
    write_table(out, pd.concat([frame.reset_index(drop=True), all_rows], axis=1))
    shown = ", ".join(predicted.columns[:8]) + (", ..." if len(predicted.columns) > 8 else "")
    where = "standard output" if str(out) == STANDARD_OUTPUT else str(out)
    typer.echo(f"{keep.sum()} rows predicted, written to {where}: {shown}", err=str(out) == STANDARD_OUTPUT)


def evaluate(
    table: TableFile,
    target: Annotated[str, typer.Option("--target", help="The column to predict.")],
    out: Annotated[Path, typer.Option("--out", help="The page; a .json file beside it.")] = Path("evaluation.html"),
    inputs: Inputs = None,
    held_out: Annotated[float, typer.Option("--held-out", min=0.01, max=0.9, help="Share of rows to test on.")] = 0.2,
    most: Annotated[int, typer.Option("--most", min=3, help="Largest number of training rows.")] = 500,
    trained: Trained = False,
    no_correction: NoCorrection = False,
    fine_tune: FineTune = False,
    steps: Steps = None,
    members: Members = None,
    seed: Seed = 0,
) -> None:
    """Compare bieqno's regressor with tuned Gaussian processes on held-out rows of a table.

    All methods are trained on the same rows and scored on the same others, with categories, dates and missing inputs as
    the same columns of numbers.

    Example: bieqno evaluate table.csv --target y --out evaluation.html
    """
    if out.suffix == ".json":
        raise typer.BadParameter(f"--out names the page, such as {out.with_suffix('.html')}")
    model = _regressor(trained, no_correction, fine_tune, steps, members, seed)
    from bieqno.cli.table_files import read_table, training_columns
    from bieqno.lab.report.plain_pages import evaluation_page, evaluation_verdict, score_rows
    from bieqno.lab.user_comparisons import LEVELS, split_rows
    from bieqno.lab.user_comparisons import evaluate as evaluate_methods
    from bieqno.regression.frames import FrameEncoder

    output.check_writable(out, table, beside=True)
    X, y = training_columns(read_table(table), target, inputs, table, texts=True)
    if y.shape[1] > 1:
        raise ValueError(f"one target is evaluated at a time, got {', '.join(y)}")
    train, test = split_rows(len(X), held_out=held_out, most=most, seed=seed)
    if len(train) + len(test) < len(X):
        output.warn(f"{len(X) - len(train) - len(test)} rows are not used; --most {len(X) - len(test)} would use all")
    with output.interruptible(), output.counting_bar("evaluate") as on_progress:
        values = y.iloc[:, 0].to_numpy()
        rows = FrameEncoder.of_all(X.iloc[train]).encode(X)
        found = evaluate_methods(rows, values, [(train, test)], ggp=model, on_progress=on_progress)
    command = shlex.join(["bieqno", *sys.argv[1:]])
    about: dict[str, Any] = {"target": str(y.columns[0]), "inputs": list(X)}
    content = {"table": str(table), "command": command, **about}
    content |= {"rows_learned_from": found.trained, "rows_held_out": len(found.observed), "levels": LEVELS.tolist()}
    content |= {"best_gaussian_process": found.opponent, "ggp_minus_best_gaussian_process": found.difference()}
    content["scores"] = {name: found.scores(name) for name in found.forecasts}
    content["reliability"] = {name: found.reliability(name).tolist() for name in found.forecasts}
    output.write_page(out, evaluation_page(found, source=table.name, command=command, **about), content)
    output.show_table(*score_rows(found)[:2])
    typer.echo(f"{evaluation_verdict(found)}\nwritten to {out} and {out.with_suffix('.json')}")


def _regressor(
    trained: bool,
    no_correction: bool,
    fine_tune: bool,
    steps: int | None,
    members: int | None,
    seed: int,
    transform: str = "auto",
) -> Any:
    """Return the chosen regressor, not yet fitted; options of the other one are wrong usage."""
    if not trained and (steps is not None or members is not None):
        raise typer.BadParameter("--steps and --members belong to the regressor that is trained: add --trained")
    if trained and (no_correction or fine_tune):
        option = "--no-correction" if no_correction else "--fine-tune"
        raise typer.BadParameter(f"{option} belongs to the pretrained regressor: leave out --trained")
    if transform not in ("auto", "none"):
        raise typer.BadParameter(f"--transform is auto or none, got {transform!r}")
    if no_correction and fine_tune:
        raise typer.BadParameter("--fine-tune trains the correction, which --no-correction leaves out")
    from bieqno.regression import GGPRegressor, PretrainedGGPRegressor

    if not trained:
        settings: dict[str, Any] = {
            "correction": not no_correction,
            "fine_tune": fine_tune,
            "target_transform": transform,
        }
        return PretrainedGGPRegressor(**settings, random_state=seed)
    return GGPRegressor(max_steps=steps or 2000, members=members or 5, random_state=seed)


def _description(model: Any) -> str:
    """Return what was used in the fit, which need not be all that was asked for."""
    if not hasattr(model, "correction"):
        return f"a generalized Gaussian process, {model.n_iter_} training steps"
    shares = zip(("local experts", "Gaussian process", "trees"), model.processes_[0].weights, strict=False)
    used = ", ".join(f"{name} {share:.0%}" for name, share in shares if share)
    unhelpful = ", fine-tuning did not help" * model.fine_tune
    tuned = f", fine-tuned in {model.n_iter_} steps" if model.n_iter_ else unhelpful
    kind = model.processes_[0].transform.kind
    return used + tuned + (f", target transformed by {kind}" if kind != "none" else "")


def _predictions(fitted: Any, X: Any, probabilities: list[float], samples: int, seed: int) -> "pd.DataFrame":
    """Return mean, standard deviation, quantiles and joint samples at some points, one column each."""
    import numpy as np
    import pandas as pd

    mean, std = (np.reshape(part, (len(X), -1)) for part in fitted.predict(X, return_std=True))
    quantiles = fitted.predict_quantiles(X, probabilities).reshape(*mean.shape, -1)
    draws = fitted.sample_y(X, samples, seed).reshape(*mean.shape, samples) if samples else None
    names = getattr(fitted, "target_names_", None)
    names = [f"y{k + 1}" for k in range(mean.shape[1])] if names is None else names
    columns: dict[str, np.ndarray] = {}
    for k, name in enumerate(names):
        prefix = f"{name}_" if len(names) > 1 else ""
        columns |= {f"{prefix}mean": mean[:, k], f"{prefix}sd": std[:, k]}
        columns |= {f"{prefix}q{p:g}": quantiles[:, k, i] for i, p in enumerate(probabilities)}
        if draws is not None:
            columns |= {f"{prefix}sample_{i + 1}": draws[:, k, i] for i in range(samples)}
    return pd.DataFrame(columns)
