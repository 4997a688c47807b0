"""``python -m bieqno.lab.filter_pretraining``: pre-train the ensemble filter and store its weights in the package."""

import argparse
import hashlib
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from bieqno.assimilation.filters.learned import pretrained
from bieqno.assimilation.training import as_seconds
from bieqno.lab.filter_pretraining.training import JUDGED, judge_of, pretrain, with_units
from bieqno.training import Progress


def _report(at: Progress) -> None:
    print(f"step {at.step}: loss {at.loss:.4f}, validation {at.validation}" if at.step else "compiling", flush=True)


def _digest() -> str:
    """Return a digest of the code of filter and worlds: checkpoints of other code are not continued."""
    folders = (Path(__file__).parent, Path(__file__).parent / "families", Path(pretrained.__file__).parent)
    code = b"".join(path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:12]


def main() -> None:
    """Train, continuing where an earlier call with the same settings was stopped; say what it gained on held-out worlds."""
    parser = argparse.ArgumentParser(prog="python -m bieqno.lab.filter_pretraining", description=main.__doc__)
    parser.add_argument("--budget", default="60 min", help="time of training, such as '2 h'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("build") / f"filter-prior-{_digest()}")
    parser.add_argument("--out", type=Path, default=pretrained.SHIPPED, help="where the weights go; into the package")
    asked, judge = parser.parse_args(), judge_of()
    options = {"budget": as_seconds(asked.budget), "checkpoint": asked.checkpoint, "chunk_steps": 200}
    result = pretrain(judge=judge, key=jax.random.key(asked.seed), on_progress=_report, **options)
    filter = with_units(result.module)
    pretrained.store(asked.out, filter)
    print(f"written to {asked.out} after {len(result.losses)} steps, best after {result.best_step}", flush=True)
    errors = eqx.filter_jit(judge.errors)
    before, after = (
        np.asarray(errors(f)) for f in (pretrained.PretrainedEnNF.untrained(key=jax.random.key(0)), filter)
    )
    for number, family in enumerate(JUDGED):
        own = slice(number, None, len(JUDGED))
        ratio = np.exp(np.mean(np.log(after[own, 0] / before[own, 0])))
        spread = np.exp(np.mean(np.log(after[own, 1] / after[own, 0])))
        print(f"{family.name}: error {ratio:.3f} of that of the base, spread {spread:.2f} of the error")


if __name__ == "__main__":
    main()
