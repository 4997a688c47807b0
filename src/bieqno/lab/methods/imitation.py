"""An EnNF that imitates an EnKF (section 3.2), in bieqno's form and in the paper's, compared with classical filters.

bieqno's form adds to a prior what it learned to add, and is shown small sub-ensembles and priors that were displaced; the paper's
form is `bieqno.lab.methods.ennf_paper`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

import bieqno.assimilation as da
from bieqno.assimilation.models.flows import count_steps, rk4
from bieqno.lab.compare import Case, Method, Outcome, compare
from bieqno.lab.methods import filters
from bieqno.lab.methods.ennf_paper import PAPER_FORM, train_paper_form
from bieqno.lab.methods.filters import LEARNED, FilterSettings, TwinTest
from bieqno.lab.papers import PaperSystem
from bieqno.lab.results import Row
from bieqno.lab.study import Findings, Run

Model: TypeAlias = da.Lorenz63 | da.Lorenz96
DRAWN = 1000  # larger ensembles than this are in no figure: their path between analyses is not kept


def imitate(s: FilterSettings, run: Run, system: da.System, lessons: da.Lessons, *, key: PRNGKeyArray) -> da.EnNF:
    """Train bieqno's form: one operator for all variables, then fine-tuned for each if the settings say so."""
    student_key, shared_key, own_key = jax.random.split(key, 3)
    objective, about = partial(da.Imitation, lessons), dict[str, Any](validate=da.Validation(**s.validation))
    student = lessons.standardise(da.EnNF(lessons.value.shape[1], **s.student, key=student_key))
    result = filters.train(run, "training", student, system, objective, **s.training, **about, key=shared_key)
    if s.fine_tuning:
        own = result.module.stacked(system.size)
        result = filters.train(run, "fine-tuning", own, system, objective, **s.fine_tuning, **about, key=own_key)
    return result.module


def imitation_study(
    s: FilterSettings, run: Run, paper: PaperSystem, opponents: Sequence[filters.Tuned], limit: da.Filter | None = None
) -> Findings:
    """Teach, train, tune and compare, also with a `limit` of `s.particles` members, on the paper's record and unseen truths."""
    record_key, truth_key, tune_key, train_key, run_key = jax.random.split(jax.random.key(run.seed), 5)

    @cache
    def lessons() -> da.Lessons:
        run.progress("teacher", 0.0)
        return paper_lessons(s, paper, record_key, run_key)

    def kept(ennf: da.EnNF, **facts: float) -> dict[str, np.ndarray]:
        facts |= {"pairs": lessons().pairs, "runs_discarded": lessons().discarded}
        return {"filter": filters.as_array(ennf), **{name: np.array(float(value)) for name, value in facts.items()}}

    def learn() -> dict[str, np.ndarray]:
        begun = time.perf_counter()
        ennf = imitate(s, run.between(0.0, 0.25), paper.system, lessons(), key=train_key)
        return kept(ennf, seconds=time.perf_counter() - begun)

    def learn_as_the_paper() -> dict[str, np.ndarray]:
        part = run.between(0.25, 0.5)
        ennf, facts = train_paper_form(part, paper.system, lessons(), **s.paper, student=s.student, key=train_key)
        return kept(ennf, **facts)

    learned = run.cases.take("training", learn) if run.wants(LEARNED) else {}
    wanted = s.paper and run.wants(PAPER_FORM)
    papers = run.cases.take("training, the paper's form", learn_as_the_paper) if wanted else {}
    cases = paper_cases(s, paper, record_key=record_key, truth_key=truth_key, tune_key=tune_key, key=run_key)
    methods = [
        (filters.fixed("baseline", lambda: filters.no_assimilation), (1,)),
        (filters.fixed("EnKF", lambda: da.EnKF(centred=False)), s.sizes),
        (filters.fixed(LEARNED, lambda: filters.as_filter(learned["filter"])), s.sizes),
        (filters.fixed(PAPER_FORM, lambda: filters.as_filter(papers["filter"])), s.sizes if papers else ()),
        *((filters.tuned(opponent, run), s.tuned_sizes) for opponent in opponents),
    ]
    if limit is not None and s.particles:
        methods.append((filters.fixed("particle filter", lambda: limit), (s.particles,)))
    rows, arrays = compare_on_paper(run.between(0.5, 1.0), methods, cases)
    shared = {"pairs": "teacher", "runs_discarded": "teacher"}
    numbers = {
        (shared.get(name, method), name): [float(value)]
        for method, found in ((LEARNED, learned), (PAPER_FORM, papers))
        for name, value in found.items()
        if name != "filter"
    }
    return [*rows, *(Row.of("training", of, name, value) for (of, name), value in numbers.items())], arrays


def paper_lessons(s: FilterSettings, paper: PaperSystem, record_key: PRNGKeyArray, key: PRNGKeyArray) -> da.Lessons:
    """Return what the paper's teacher, an EnKF with many members, does on the first windows of its record."""
    runs, members = s.teacher_runs, s.teacher_members
    trials = paper.trials(s.training_windows, runs=runs, members=members, one_record=True, key=record_key)
    return da.teach(da.EnKF(centred=False), paper.system, trials, key=key)


def paper_cases(
    s: FilterSettings,
    paper: PaperSystem,
    *,
    record_key: PRNGKeyArray,
    truth_key: PRNGKeyArray,
    tune_key: PRNGKeyArray,
    key: PRNGKeyArray,
) -> dict[str, Callable[[int], Case[TwinTest]]]:
    """Return for each protocol what makes its case for an ensemble size.

    The protocol ``paper`` has one truth and one record of observations, on whose first windows the filter was trained, with other
    first ensembles than the teacher's; ``unseen`` has truths that no filter was trained or tuned on.
    """
    system, first = paper.system, s.teacher_runs

    def trials(protocol: str, size: int) -> da.Trials:
        if protocol == "unseen":
            return da.make_trials(system, s.windows, truths=s.truths, members=size, key=truth_key)
        made = paper.trials(s.windows, runs=first + s.runs, members=size, one_record=True, key=record_key)
        return jax.tree.map(lambda x: x[first:], made)

    def tuning_trials(size: int) -> tuple[da.Trials, int]:
        truths, windows = s.tuning
        return da.make_trials(system, windows, truths=truths, members=size, key=tune_key), windows // 10

    @cache  # methods of one size share their trials
    def test(protocol: str, size: int) -> TwinTest:
        model: Any = system.model if size <= DRAWN else None
        chosen, record = trials(protocol, size), KeepPath(model)
        return TwinTest(system, chosen, partial(tuning_trials, size), key, record=record, label=f"N={size}")

    return {protocol: partial(filters.twin_case, test, protocol) for protocol in ("paper", "unseen")}


def compare_on_paper(
    run: Run,
    methods: Sequence[tuple[Method[TwinTest], Sequence[int]]],
    cases: Mapping[str, Callable[[int], Case[TwinTest]]],
) -> tuple[list[Row], dict[str, xr.Dataset]]:
    """Run each method with each of its sizes under every protocol; return relative errors and the series of figures."""
    plan = [(make(size), method) for method, sizes in methods for size in sizes for make in cases.values()]
    outcomes = compare(run, plan, filters.score_filter, keep=("mean", "path"))
    found = {name: [o for o in outcomes if o.case.about["protocol"] == name] for name in cases}
    arrays = {protocol: _series(own) for protocol, own in found.items() if own}
    return filters.filter_rows(outcomes, ("relative_rmse",)), arrays


class KeepPath(eqx.Module):
    """Keeps mean and spread of each analysis and, given a model, the ensemble mean at every step of the window before it."""

    model: Model | None

    def __call__(
        self, prior: Float[Array, "N n"], posterior: Float[Array, "N n"], observed: da.Observed, *, key: PRNGKeyArray
    ) -> dict[str, Array]:
        """Return what is kept of a window: the last step of its path shows the analysis."""
        mean = jnp.mean(posterior, axis=0)
        kept = {"mean": mean, "spread": jnp.std(posterior, axis=0, ddof=min(1, posterior.shape[0] - 1))}
        if self.model is None:
            return kept
        assert observed.start is not None, "`cycle` gives it"
        return {**kept, "path": path_of(self.model, observed.start).at[-1].set(mean)}


def path_of(model: Model, ensemble: Float[Array, "N n"]) -> Float[Array, "s n"]:
    """Return the mean of an ensemble at every integration step of one window."""

    def step(z: Float[Array, "N n"], _: None) -> tuple[Array, Array]:
        z = jax.vmap(lambda state: rk4(model.tendency, state, step=model.step, steps=1))(z)
        return z, jnp.mean(z, axis=0)

    return jax.lax.scan(step, ensemble, None, length=count_steps(model.window, model.step))[1]


def _series(outcomes: Sequence[Outcome[TwinTest]]) -> xr.Dataset:
    """Return truth and means of all runs, and the path of the first run between analyses."""
    test = outcomes[0].case.draw(0)
    model: Any = test.system.model  # one of the paper's
    truth = np.asarray(test.trials.twins.truth)
    # The first truth between its windows; where it began is not kept, so the first window has none.
    inside = np.asarray(jax.vmap(partial(path_of, model))(test.trials.twins.truth[0, :-1, None]))
    true_path = np.concatenate([np.full_like(inside[:1], np.nan), inside]).reshape(-1, truth.shape[-1])

    missing = np.full((1, *true_path.shape), np.nan)
    paths = [outcome.kept[0].get("path", missing)[0].reshape(true_path.shape) for outcome in outcomes]
    of_path = {"long_name": "ensemble mean of the first run at every integration step"}
    of_divergence = {"long_name": "window of the divergence, -1 if there was none"}
    means = np.stack([outcome.kept[0]["mean"] for outcome in outcomes])
    each = ("entry", "run", "window", "variable")
    times = {"time": ("window", model.window * np.arange(1, truth.shape[1] + 1))}
    times["path_time"] = ("step", model.step * np.arange(1, true_path.shape[0] + 1))
    return xr.Dataset(
        {
            "truth": (each[1:], truth),
            "mean": (each, means, {"long_name": "analysis mean, NaN from a divergence on"}),
            "path": (("entry", "step", "variable"), np.stack(paths).astype(np.float32), of_path),
            "true_path": (("step", "variable"), true_path),
            "error": (("entry", "run"), np.stack([o.scores["relative_rmse"] for o in outcomes])),
            "diverged": (("entry", "run"), np.stack([o.scores["diverged"] for o in outcomes]), of_divergence),
        },
        {**filters.entry_labels(outcomes), **times},
    )
