"""``python -m bieqno.lab.pretraining``: train the prior over functions and store its weights in the package."""

import argparse
import hashlib
from pathlib import Path

import jax

from bieqno import persistence
from bieqno.cli.progress import training_bar
from bieqno.lab.pretraining.training import pretrain
from bieqno.regression.pretrained import LocalProcess
from bieqno.regression.pretrained.weights import LEARNED


def _digest() -> str:
    """Of the code that functions, features and experts come from: a checkpoint of others is not gone on with."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code).hexdigest()[:12]


def main() -> None:
    """Train, going on from where an earlier call with the same settings was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bieqno.lab.pretraining", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("build") / f"prior-{_digest()}")
    parser.add_argument("--out", type=Path, help="where the weights go; into the package by default")
    asked = parser.parse_args()
    with training_bar("prior over functions") as on_progress:
        result = pretrain(
            steps=asked.steps, batch_size=asked.batch_size, width=asked.width, key=jax.random.key(asked.seed),
            checkpoint=asked.checkpoint, on_progress=on_progress,
        )  # fmt: skip
    persistence.save(asked.out or LEARNED, result.module, known=[LocalProcess])


if __name__ == "__main__":
    main()
