"""How good a correction is, by kind of function, design and noise and by number of inputs: log-loss with and without it.

``python benchmarks/prior.py``. Every line holds one kind fixed: medians over tasks with the correction and without it, the mean
difference with its standard error (each task's at most 3 either way; lower is better), and the share of tasks in which the
correction is better. Kinds that are held out of the training are marked so. ``--against weights.bieqno`` compares with the
correction of other weights instead of the experts alone.
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno import persistence
from bieqno.lab.pretraining.designs import ANY, DESIGNS, NOISES
from bieqno.lab.pretraining.functions import FAMILIES, RandomTasks
from bieqno.lab.pretraining.training import predict
from bieqno.regression.metrics import log_losses
from bieqno.regression.pretrained.correction import MAX_DIMENSION, SHIPPED, Correction, no_correction

KINDS = {"function": FAMILIES, "design": DESIGNS, "noise": NOISES}
MOST = 3.0  # nats by which one task counts: a jump that nothing announced costs thousands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--weights", type=Path, default=SHIPPED[1])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    source, keys = RandomTasks(1), jax.random.split(jax.random.key(asked.seed), asked.tasks)

    @eqx.filter_jit
    def losses(correction, *kinds):
        def of_task(key):
            task = source.draw(key, *kinds)
            mean, variance = predict(correction, task)
            mask = task.mask.ravel()
            each = jnp.where(mask, log_losses(task.values.ravel() - mean, variance), 0)
            return jnp.sum(each) / jnp.maximum(jnp.sum(mask), 1)

        return jax.lax.map(of_task, keys)

    other = no_correction() if asked.against is None else persistence.load(asked.against, known=[Correction])
    forms = persistence.load(asked.weights, known=[Correction]), other

    def line(kind: str, name: object, mark: str, *kinds: int) -> None:
        found = [np.asarray(losses(form, *map(jnp.asarray, kinds))) for form in forms]
        apart = np.clip(found[0] - found[1], -MOST, MOST)
        scores = f"{np.median(found[0]):8.3f}{np.median(found[1]):10.3f}{np.mean(apart):10.3f}"
        error = f" +-{np.std(apart) / np.sqrt(len(apart)):6.3f}"
        print(f"{kind:<10}{name!s:<22}{mark:<10}{scores}{error}{np.mean(apart < 0):8.0%}", flush=True)

    for place, (kind, shares) in enumerate(KINDS.items()):
        for number, (name, share) in enumerate(shares.items()):
            chosen = [ANY, ANY, ANY, ANY]
            chosen[place] = number
            line(kind, name, "" if share else "held out", *chosen)
    for inputs in (1, 2, 3, 4, 6, 8, MAX_DIMENSION):
        line("inputs", inputs, "", ANY, ANY, ANY, inputs)


if __name__ == "__main__":
    main()
