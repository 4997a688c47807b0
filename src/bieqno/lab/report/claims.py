"""The paper's claims, each decided by the rows of a study, for the paper's form of its methods and for bieqno's.

Each form is compared with the opponent that the paper names, and with the best of the tuned ones. The verdict on a claim of
the paper is that of the paper's form against the paper's opponent.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bieqno.lab.report import findings
from bieqno.lab.report.findings import Finding, Form, beats
from bieqno.lab.results import Result

SMOKE = "smoke"  # the preset that tests that everything runs; its numbers mean nothing


class Claim(NamedTuple):
    """What the paper says of an experiment, and how its verdict is found."""

    experiment: str
    text: str
    judge: Callable[[Result, Form], Finding]


class Judged(NamedTuple):
    """A claim, its finding for the paper's form with experiment and preset (None if not run), and `ours`, that for bieqno's."""

    claim: Claim
    finding: Finding
    source: str | None = None
    preset: str | None = None
    ours: "Judged | None" = None


def judge_all(results: Iterable[Result]) -> list[Judged]:
    """Decide all claims: by a study's own result first, then by the same study within another, by preset smoke last."""
    ordered = sorted(results, key=lambda result: (result.preset == SMOKE, list(result.parts()) != [result.experiment]))
    judged = []
    for claim in CLAIMS:
        able = [result for result in ordered if claim.experiment in result.parts()]
        judged.append(_judge(claim, able, findings.PAPERS)._replace(ours=_judge(claim, able, findings.OURS)))
    return judged


def _judge(claim: Claim, results: Sequence[Result], form: Form) -> Judged:
    """Decide by the first result that has all that the claim needs: one of selected methods may lack it."""
    lacking = None
    for result in results:
        try:
            return Judged(claim, claim.judge(result.parts()[claim.experiment], form), result.experiment, result.preset)
        except KeyError as missing:
            found = Finding("not run", f"there is no {missing.args[0]}")
            lacking = lacking or Judged(claim, found, result.experiment, result.preset)
    return lacking or Judged(claim, Finding("not run", f"bieqno run {claim.experiment}"))


_BETTER = "gGP predicts a function with jumps better than a Gaussian process with the squared exponential kernel."
_SMOOTHS = "gGP captures the jumps that the Gaussian process smooths."
_FILTERS = {
    "EnNF works with two members, where EnKF does not.": findings.works_with_two,
    "EnNF has lower errors than EnKF at every ensemble size.": findings.lower_at_all_sizes,
    "Its accuracy hardly depends on the ensemble size.": findings.steady,
}
CLAIMS = (
    Claim("step-1d", _BETTER, beats(rmse="RMSE", nlpd="NLPD")),
    Claim("step-1d", _SMOOTHS, beats(rmse_near_jump="RMSE near jumps")),
    Claim("step-1d", "Its advantage is largest with few observations.", findings.most_with_few),
    Claim("trig-2d", "gGP predicts the function of four scales better than the Gaussian process.", beats(rmse="RMSE")),
    Claim("trig-2d", "gGP finds all four scales, the Gaussian process at best three.", findings.finds_the_scales),
    *(Claim(name, text, judge) for text, judge in _FILTERS.items() for name in ("lorenz63", "lorenz96")),
    Claim(
        "lorenz63", "Trained on EnKF, EnNF does as well as its teacher where the teacher does well.", findings.emulates
    ),
    Claim("super-filter", "One EnNF can represent a series of ensemble filters.", findings.plays_roles),
)
