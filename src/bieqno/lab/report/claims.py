"""The paper's claims, each judged by numbers that were measured here.

A claim is judged against the opponent that the paper names; how the tuned ones did is said beside it. Where the paper's words
leave a measure open, the measure is written down with the judgement.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bieqno.lab.report.filter_claims import emulates, lower_at_all_sizes, plays_roles, steady, works_with_two
from bieqno.lab.report.findings import Finding
from bieqno.lab.report.regression_claims import beats_the_process, finds_the_scales, most_with_few
from bieqno.lab.studies import Result

SMOKE = "smoke"  # the preset that shows that everything runs, and nothing else


@dataclass(frozen=True)
class Claim:
    """What the paper says of an experiment, and how it is judged."""

    experiment: str
    text: str
    judge: Callable[[Result], Finding]


@dataclass(frozen=True)
class Judged:
    """A claim with what was found, and the experiment and preset that measured it (None if none did)."""

    claim: Claim
    finding: Finding
    source: str | None
    preset: str | None = None


def judge_all(results: Iterable[Result]) -> list[Judged]:
    """All claims; a study of its own counts before the same study within another, and preset smoke, which shows nothing, last.

    A result that lacks what a claim needs, as one of chosen methods only, gives way to the next.
    """
    sources: dict[str, list[tuple[Result, Result]]] = {}
    for result in sorted(
        results, key=lambda result: (result.preset == SMOKE, list(result.parts()) != [result.experiment])
    ):
        for name, part in result.parts().items():
            sources.setdefault(name, []).append((part, result))
    return [_judge(claim, sources.get(claim.experiment, [])) for claim in CLAIMS]


def _judge(claim: Claim, sources: Sequence[tuple[Result, Result]]) -> Judged:
    lacking = None
    for part, result in sources:
        try:
            return Judged(claim, claim.judge(part), result.experiment, result.preset)
        except KeyError as missing:  # a run of chosen methods or cases only
            found = Finding("not run", f"there is no {missing.args[0]}")
            lacking = lacking or Judged(claim, found, result.experiment, result.preset)
    return lacking or Judged(claim, Finding("not run", f"bieqno run {claim.experiment}"), None)


_FILTERS = ("lorenz63", "lorenz96")
CLAIMS = (
    Claim("step-1d", "gGP predicts a function with jumps better than a Gaussian process with the squared exponential kernel.",
          beats_the_process({"rmse": "RMSE", "nlpd": "NLPD"})),
    Claim("step-1d", "gGP captures the jumps that the Gaussian process smooths.",
          beats_the_process({"rmse_near_jump": "RMSE near jumps"})),
    Claim("step-1d", "Its advantage is largest with few observations.", most_with_few),
    Claim("trig-2d", "gGP predicts the function of four scales better than the Gaussian process.",
          beats_the_process({"rmse": "RMSE"})),
    Claim("trig-2d", "gGP finds all four scales, the Gaussian process at best three.", finds_the_scales),
    *(Claim(name, "EnNF works with two members, where EnKF does not.", works_with_two) for name in _FILTERS),
    *(Claim(name, "EnNF has lower errors than EnKF at every ensemble size.", lower_at_all_sizes) for name in _FILTERS),
    *(Claim(name, "Its accuracy hardly depends on the ensemble size.", steady) for name in _FILTERS),
    Claim("lorenz63", "Trained on EnKF, EnNF does as well as its teacher where the teacher does well.", emulates),
    Claim("super-filter", "One EnNF can represent a series of ensemble filters.", plays_roles),
)  # fmt: skip
