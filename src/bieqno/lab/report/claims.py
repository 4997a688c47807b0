"""The paper's claims, each with the judge that decides it, and their verdicts for a set of results.

A claim is judged against the opponent that the paper names; the tuned opponents are among the further numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bieqno.lab.report import judges
from bieqno.lab.report.judges import Finding
from bieqno.lab.results import Result

SMOKE = "smoke"  # the preset that tests that everything runs; its numbers mean nothing


@dataclass(frozen=True)
class Claim:
    """What the paper says of an experiment, and how it is judged."""

    experiment: str
    text: str
    judge: Callable[[Result], Finding]


@dataclass(frozen=True)
class Judged:
    """A claim with its finding, and the experiment and preset that measured it (None if none did)."""

    claim: Claim
    finding: Finding
    source: str | None
    preset: str | None = None


def judge_all(results: Iterable[Result]) -> list[Judged]:
    """Judge all claims: by a study's own result first, then by the same study within another, by preset smoke last.

    A result that lacks what a claim needs, such as one of selected methods, is passed over for the next.
    """
    sources: dict[str, list[tuple[Result, Result]]] = {}
    for result in sorted(results, key=lambda r: (r.preset == SMOKE, list(r.parts()) != [r.experiment])):
        for name, part in result.parts().items():
            sources.setdefault(name, []).append((part, result))
    return [_judge(claim, sources.get(claim.experiment, [])) for claim in CLAIMS]


def _judge(claim: Claim, sources: Sequence[tuple[Result, Result]]) -> Judged:
    lacking = None
    for part, result in sources:
        try:
            return Judged(claim, claim.judge(part), result.experiment, result.preset)
        except KeyError as missing:  # a run of selected methods or cases
            found = Finding("not run", f"there is no {missing.args[0]}")
            lacking = lacking or Judged(claim, found, result.experiment, result.preset)
    return lacking or Judged(claim, Finding("not run", f"bieqno run {claim.experiment}"), None)


_BETTER = "gGP predicts a function with jumps better than a Gaussian process with the squared exponential kernel."
_SMOOTHS = "gGP captures the jumps that the Gaussian process smooths."
_WAVES = "gGP predicts the function of four scales better than the Gaussian process."
_EMULATES = "Trained on EnKF, EnNF does as well as its teacher where the teacher does well."
_FILTERS = {
    "EnNF works with two members, where EnKF does not.": judges.works_with_two,
    "EnNF has lower errors than EnKF at every ensemble size.": judges.lower_at_all_sizes,
    "Its accuracy hardly depends on the ensemble size.": judges.steady,
}
CLAIMS = (
    Claim("step-1d", _BETTER, judges.beats(rmse="RMSE", nlpd="NLPD")),
    Claim("step-1d", _SMOOTHS, judges.beats(rmse_near_jump="RMSE near jumps")),
    Claim("step-1d", "Its advantage is largest with few observations.", judges.most_with_few),
    Claim("trig-2d", _WAVES, judges.beats(rmse="RMSE")),
    Claim("trig-2d", "gGP finds all four scales, the Gaussian process at best three.", judges.finds_the_scales),
    *(Claim(name, text, judge) for text, judge in _FILTERS.items() for name in ("lorenz63", "lorenz96")),
    Claim("lorenz63", _EMULATES, judges.emulates),
    Claim("super-filter", "One EnNF can represent a series of ensemble filters.", judges.plays_roles),
)
