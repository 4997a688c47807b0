"""``python -m bieqno.lab.filter_pretraining``: pre-train the ensemble filter and store its weights in the package."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from bieqno.assimilation.filters.learned import pretrained
from bieqno.assimilation.filters.learned.pretrained import PretrainedEnNF
from bieqno.assimilation.training import as_seconds
from bieqno.lab.filter_pretraining.training import JUDGED, WorldErrors, judge_of, pretrain, with_units
from bieqno.training import Progress


def _report(at: Progress) -> None:
    print(f"step {at.step}: loss {at.loss:.4f}, validation {at.validation}" if at.step else "compiling", flush=True)


def _digest() -> str:
    """Return a digest of the code of filter and worlds: checkpoints of other code are not continued."""
    folders = (Path(__file__).parent, Path(__file__).parent / "families", Path(pretrained.__file__).parent)
    code = b"".join(path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:12]


def main() -> None:
    """Train on the weights that ship, or where an earlier call was stopped; say what it gained on held-out worlds."""
    parser = argparse.ArgumentParser(prog="python -m bieqno.lab.filter_pretraining", description=main.__doc__)
    parser.add_argument("--budget", default="60 min", help="time of training, such as '2 h'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--new", action="store_true", help="begin with new weights, not with those that ship")
    parser.add_argument("--checkpoint", type=Path, default=Path("build") / f"filter-prior-{_digest()}")
    parser.add_argument("--out", type=Path, default=pretrained.SHIPPED, help="where the weights go; into the package")
    asked, judge = parser.parse_args(), judge_of()
    options: dict[str, Any] = {"budget": as_seconds(asked.budget), "checkpoint": asked.checkpoint, "chunk_steps": 200}
    base = PretrainedEnNF.untrained(key=jax.random.key(asked.seed))
    begun = base if asked.new or not pretrained.SHIPPED.exists() else pretrained.shipped_filter()
    left_out = eqx.filter_jit(judge.of_family(0))

    def watch(student: PretrainedEnNF, losses: Float[np.ndarray, "steps"]) -> bool:
        print(f"step {len(losses)}: validation on {JUDGED[0].name} {float(left_out(student)):.4f}", flush=True)
        return False

    options |= {"on_progress": _report, "watch": watch}
    result = pretrain(begun, judge=judge, key=jax.random.key(asked.seed), **options)
    filter = with_units(result.module)
    pretrained.store(asked.out, filter)
    print(f"written to {asked.out} after {len(result.losses)} steps, best after {result.best_step}", flush=True)
    _compare(judge, {"the base": base, "what it began with": begun}, filter)


def _compare(judge: WorldErrors, others: dict[str, PretrainedEnNF], filter: PretrainedEnNF) -> None:
    """Print the error of a filter over that of others, and its spread over its error, family by family."""
    errors = eqx.filter_jit(judge.errors)
    own = np.asarray(errors(filter))
    before = {name: np.asarray(errors(other)) for name, other in others.items()}
    for number, family in enumerate(JUDGED):
        part = slice(number, None, len(JUDGED))
        ratios = (f"{np.exp(np.mean(np.log(own[part, 0] / x[part, 0]))):.3f} of that of {n}" for n, x in before.items())
        spread = np.exp(np.mean(np.log(own[part, 1] / own[part, 0])))
        print(f"{family.name}: error {', '.join(ratios)}, spread {spread:.2f} of the error", flush=True)


if __name__ == "__main__":
    main()
