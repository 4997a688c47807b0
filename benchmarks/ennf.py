"""Speed of the ensemble neural filter, side by side with PyTorch and with the machine's own matrix product, in one run.

The training step is the one of the Lorenz-96 study (24 variables, 8 observed values, sub-ensembles of 16), on a batch that is
there already; the peer is the same network with the same loss and optimizer, written plainly in PyTorch. Prints a table, and
the same as JSON in the last line. Only the ratios count, between best times of turns taken in alternation. Run with
``make bench``.
"""

import json
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import torch
from rich.console import Console
from rich.table import Table

from bieqno.assimilation import EnNF
from bieqno.assimilation.objectives.imitation import Example, ImitationLoss
from bieqno.lab.papers import paper_lorenz96
from operators import alternate, best_time, fit_step, matmul_rate, torch_mlp

WIDTH, LAYERS = 64, 3
EXAMPLES, MEMBERS, VARIABLES, OBSERVED = 64, 16, 24, 8
OWN, COMMON = 2, 3 * OBSERVED  # values of an element that belong to the variable, and that all variables share


def a_batch() -> tuple[Example, ...]:
    """A batch of random examples."""
    keys = jax.random.split(jax.random.key(1), 4)
    state, observed = (EXAMPLES, MEMBERS, VARIABLES), (EXAMPLES, MEMBERS, OBSERVED)
    value = jax.random.normal(keys[3], (EXAMPLES, OBSERVED))
    return (
        Example(
            jax.random.normal(keys[0], state),
            jax.random.normal(keys[1], state),
            jax.random.normal(keys[2], observed),
            value,
            jnp.ones(value.shape, bool),
            value,
            jnp.zeros(EXAMPLES, int),
        ),
    )


def step_operations() -> tuple[float, float]:
    """Multiplications and additions of one training step: as the equation is written, and as we carry it out.

    Forward, and twice that backward, less the gradient to the inputs. We apply the first embedding layers to what all variables
    share once per member, and the first fitting layer to the pooled embedding once per ensemble and variable.
    """
    embedding = [(OWN + COMMON, WIDTH)] + [(WIDTH, WIDTH)] * (LAYERS - 1)
    fitting = [(2 * WIDTH, WIDTH)] + [(WIDTH, WIDTH)] * (LAYERS - 2) + [(WIDTH, 1)]
    forward = sum(2 * a * b for a, b in [*embedding, *embedding, *fitting])
    elements = EXAMPLES * VARIABLES * MEMBERS
    written = elements * (3 * forward - 2 * 2 * (OWN + COMMON) * WIDTH)
    pooled = 3 * EXAMPLES * VARIABLES * (MEMBERS - 1) * 2 * WIDTH * WIDTH
    shared = 2 * EXAMPLES * MEMBERS * (VARIABLES - 1) * 2 * 2 * COMMON * WIDTH
    return written, written - pooled - shared


def our_step(microbatches: int) -> Callable[[], float]:
    """Seconds per training step, by `fit` itself."""
    filter = EnNF(OBSERVED, width=WIDTH, depth=LAYERS, key=jax.random.key(0))
    loss = ImitationLoss(paper_lorenz96().system.observation, jnp.array(1.0))
    return fit_step(filter, loss, a_batch(), microbatches, chunk=10)


def torch_step() -> Callable[[], float]:
    """Seconds per training step of the same network, written plainly in PyTorch."""
    torch.manual_seed(0)
    embed_self, embed_interaction = (torch_mlp([OWN + COMMON] + [WIDTH] * LAYERS) for _ in range(2))
    fitting = torch_mlp([2 * WIDTH] + [WIDTH] * (LAYERS - 1) + [1])
    parameters = [p for net in (embed_self, embed_interaction, fitting) for p in net.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)
    own = torch.randn(EXAMPLES, VARIABLES, MEMBERS, OWN)
    common = torch.randn(EXAMPLES, 1, MEMBERS, COMMON).expand(-1, VARIABLES, -1, -1)
    target = torch.randn(EXAMPLES, VARIABLES, MEMBERS, 1)

    def step() -> None:
        optimizer.zero_grad()
        elements = torch.cat([own, common], -1)
        embedded = embed_self(elements)
        pooled = embed_interaction(elements).mean(2, keepdim=True).expand_as(embedded)
        loss = ((fitting(torch.cat([embedded, pooled], -1)) - target) ** 2).mean()
        loss.backward()
        optimizer.step()

    step()
    return lambda: best_time(step, 3)


def analysis_time(stacked: bool) -> Callable[[], float]:
    """Seconds of one compiled analysis."""
    filter = EnNF(OBSERVED, width=WIDTH, depth=LAYERS, key=jax.random.key(0))
    filter = filter.stacked(VARIABLES) if stacked else filter
    observed = paper_lorenz96().system.observation.window(jnp.zeros(OBSERVED))
    prior = jax.random.normal(jax.random.key(1), (MEMBERS, VARIABLES))
    analyse = eqx.filter_jit(lambda filter, prior, key: filter(prior, observed, key=key))
    arguments = (filter, prior, jax.random.key(2))
    jax.block_until_ready(analyse(*arguments))
    return lambda: min(best_time(lambda: analyse(*arguments), 1) for _ in range(50))


def main() -> None:
    """Measure and print."""
    table = Table("what", "ours", "peer", "ratio", "bar")
    rows = []

    def add(what: str, ours: float, peer: float, ratio: float, bar: str, met: bool) -> None:
        table.add_row(what, f"{ours:.4g}", f"{peer:.4g}", f"{ratio:.2f}", bar)
        rows.append({"what": what, "ours": ours, "peer": peer, "ratio": ratio, "bar": bar, "met": met})

    candidates = {f"ours, {k} microbatches": our_step(k) for k in (1, 4, 16)}
    times = alternate({"matmul": matmul_rate(), "torch": torch_step(), **candidates})
    peak, peer = max(times["matmul"]), min(times["torch"])
    best = min(candidates, key=lambda name: min(times[name]))
    ours = min(times[best])
    written, done = (count / ours for count in step_operations())
    add(f"step ({best}): seconds against PyTorch", ours, peer, peer / ours, ">= 1.3", peer / ours >= 1.3)
    add(
        "step: written operations/s against a matrix product",
        written,
        peak,
        written / peak,
        ">= 0.75",
        written / peak >= 0.75,
    )
    add("step: executed operations/s against a matrix product", done, peak, done / peak, ">= 0.75", done / peak >= 0.75)
    for stacked in (False, True):
        seconds = min(alternate({"analysis": analysis_time(stacked)})["analysis"])
        what = f"analysis, N = 16, n = 24, {'stacked weights' if stacked else 'shared weights'}: ms"
        add(what, 1e3 * seconds, 1.0, 1e3 * seconds, "< 1", seconds < 1e-3)
    Console().print(table)
    print(json.dumps({"benchmark": "ennf", "rows": rows}))


if __name__ == "__main__":
    main()
