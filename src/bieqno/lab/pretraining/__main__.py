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
    folders = (Path(__file__).parent, SHIPPED.parent)
    code = b"".join(path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:12]


def main() -> None:
    """Train, continuing where an earlier call with the same settings was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bieqno.lab.pretraining", description=main.__doc__)
    for name, default in {"--steps": 5000, "--batch-size": 16, "--width": 64, "--seed": 0}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--checkpoint", type=Path, default=Path("build") / f"prior-{_digest()}")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="where the weights go; into the package by default")
    asked = vars(parser.parse_args())
    out, key = asked.pop("out"), jax.random.key(asked.pop("seed"))
    result = pretrain(**asked, key=key, on_progress=_report)
    persistence.save(out, result.module, known=[Correction])


if __name__ == "__main__":
    main()
