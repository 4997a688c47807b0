"""How good the shipped correction is, by kind of function, design and noise: log-loss with it and by the experts alone.

``python benchmarks/prior.py``. Every line holds one kind fixed: medians over tasks with the correction and without it (lower is
better), and the share of tasks in which the correction is better. What the shipped weights were not trained on is marked "new".
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bieqno.lab.pretraining.designs import ANY, DESIGNS, NOISES
from bieqno.lab.pretraining.functions import FAMILIES, RandomTasks
from bieqno.lab.pretraining.training import predict
from bieqno.regression.metrics import log_losses
from bieqno.regression.pretrained.correction import no_correction, shipped_correction

NEW = {"additive", "interaction", "periodic with trend", "clusters", "growing", "heavy-tailed", "outliers"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=128)
    tasks, source = parser.parse_args().tasks, RandomTasks(1)

    @eqx.filter_jit
    def losses(correction, key, family, design, noise):
        task = source.draw(key, family, design, noise)
        mean, variance = predict(correction, task)
        mask = task.mask.ravel()
        each = jnp.where(mask, log_losses(task.values.ravel() - mean, variance), 0)
        return jnp.sum(each) / jnp.maximum(jnp.sum(mask), 1)

    forms = shipped_correction(), no_correction()
    known = {"normal": 0, "scattered": 0}
    for kind, (place, names) in {"function": (0, FAMILIES), "design": (1, DESIGNS), "noise": (2, NOISES)}.items():
        for number, name in enumerate(names):
            # What is not looked at is as in the training of the shipped weights, as far as one number says it.
            chosen = [ANY, known["scattered"], known["normal"]]
            chosen[place] = number
            keys = jax.random.split(jax.random.key(1), tasks)
            found = [[float(losses(form, key, *map(jnp.asarray, chosen))) for key in keys] for form in forms]
            better = np.mean(np.less(*found))
            mark = "new" if name in NEW else ""
            scores = f"{np.median(found[0]):8.3f}{np.median(found[1]):10.3f}{better:8.0%}"
            print(f"{kind:<10}{name:<22}{mark:<5}{scores}", flush=True)


if __name__ == "__main__":
    main()
