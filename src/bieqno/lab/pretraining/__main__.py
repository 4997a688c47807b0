"""``python -m bieqno.lab.pretraining``: pre-train the correction and store its weights in the package."""

import argparse
import hashlib
from pathlib import Path

import jax

from bieqno import persistence
from bieqno.lab.pretraining.training import pretrain
from bieqno.regression.pretrained.correction import SHIPPED, Correction
from bieqno.training import Progress


def _report(at: Progress) -> None:
    print(f"step {at.step}: loss {at.loss:.4f}" if at.step else "compiling", flush=True)


def _digest() -> str:
    """Return a digest of the code of functions, experts and features: checkpoints of other code are not continued."""
    folders = (Path(__file__).parent, SHIPPED[0].parent)
    code = b"".join(path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:12]


def main() -> None:
    """Train, continuing where an earlier call with the same settings was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bieqno.lab.pretraining", description=main.__doc__)
    for name, default in {"--steps": 10_000, "--batch-size": 16, "--width": 64, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--start", type=Path, help="weights of an earlier training to begin with")
    parser.add_argument("--checkpoint", type=Path, default=Path("build") / f"prior-{_digest()}")
    parser.add_argument(
        "--out", type=Path, default=SHIPPED[1], help="where the weights go; into the package by default"
    )
    asked = vars(parser.parse_args())
    start, width, out = (asked.pop(name) for name in ("start", "width", "out"))
    weight_key, fit_key = jax.random.split(jax.random.key(asked.pop("seed")))
    first = Correction(width=width, key=weight_key) if start is None else persistence.load(start, known=[Correction])
    result = pretrain(first, **asked, key=fit_key, on_progress=_report)
    persistence.save(out, result.module, known=[Correction])


if __name__ == "__main__":
    main()
