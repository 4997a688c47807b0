"""Speed of the operators, side by side with PyTorch and with the machine's own matrix product, in one run.

Prints a table, and the same as JSON in the last line. Absolute times depend on the machine and on what else it does:
only the ratios count, and each is between best times of turns taken in alternation. Run with ``make bench``.
"""

import json
import time
from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp
import torch
from rich.console import Console
from rich.table import Table

import bieqno

WIDTH, LAYERS, ROUNDS = 64, 3, 5
# (sets, elements, values per element) and into how many microbatches our step splits them: cache-sized pieces.
CASES = [((64, 50, 5), 1), ((256, 100, 17), 16)]


def best_time(work: Callable[[], object], repeats: int) -> float:
    """Seconds per call: the mean of a few calls in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        result = work()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def matmul_rate(size: int = 2048) -> Callable[[], float]:
    """A function that measures the rate of a float32 matrix product, in operations per second."""
    a = jnp.ones((size, size))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    return lambda: 2 * size**3 / best_time(lambda: product(a), 3)


def step_operations(sets: int, elements: int, values: int) -> tuple[float, float]:
    """Multiplications and additions of one training step: as the equation is written, and as we carry it out.

    Forward, and twice that backward, less the gradient to the inputs, which nobody asks for. We apply the fitting net's first
    layer to the pooled embedding once per set instead of once per element.
    """
    embedding = [(values, WIDTH)] + [(WIDTH, WIDTH)] * (LAYERS - 1)
    fitting = [(2 * WIDTH, WIDTH)] + [(WIDTH, WIDTH)] * (LAYERS - 2) + [(WIDTH, 1)]
    forward = sum(2 * a * b for a, b in [*embedding, *embedding, *fitting])
    written = sets * elements * (3 * forward - 2 * 2 * values * WIDTH)
    return written, written - 3 * sets * (elements - 1) * 2 * WIDTH * WIDTH


def our_step(shape: tuple[int, int, int], microbatches: int) -> Callable[[], float]:
    """Seconds per training step of the equivariant operator, by `fit` itself."""
    operator = bieqno.EquivariantOperator(shape[2], 1, width=WIDTH, depth=LAYERS, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), shape)
    batch = (x, jnp.sum(x, axis=2, keepdims=True))

    def loss(operator, batch, *, key):
        x, y = batch
        return jnp.mean((jax.vmap(operator)(x) - y) ** 2)

    return fit_step(operator, loss, batch, microbatches, chunk=20)


def fit_step(module, loss, batch, microbatches: int, *, chunk: int) -> Callable[[], float]:
    """Seconds per training step of a module on a batch that is there already, by `fit` itself."""

    def source(key):
        return batch

    def measure() -> float:
        seconds, about = [], {"microbatches": microbatches, "key": jax.random.key(2)}
        about["on_progress"] = lambda p: seconds.append(p.seconds)
        bieqno.fit(module, loss, source, steps=4 * chunk, chunk_steps=chunk, **about)
        return min(b - a for a, b in pairwise(seconds)) / chunk

    return measure


def torch_mlp(sizes: list[int]) -> torch.nn.Sequential:
    """A network of PyTorch."""
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def torch_step(shape: tuple[int, int, int]) -> Callable[[], float]:
    """Seconds per training step of the same network, written plainly in PyTorch."""
    torch.manual_seed(0)
    embed_self, embed_interaction = (torch_mlp([shape[2]] + [WIDTH] * LAYERS) for _ in range(2))
    fit = torch_mlp([2 * WIDTH] + [WIDTH] * (LAYERS - 1) + [1])
    parameters = [p for net in (embed_self, embed_interaction, fit) for p in net.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)
    x = torch.randn(shape)
    y = x.sum(2, keepdim=True)

    def step() -> None:
        optimizer.zero_grad()
        own = embed_self(x)
        pooled = embed_interaction(x).mean(1, keepdim=True).expand_as(own)
        loss = ((fit(torch.cat([own, pooled], -1)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()

    step()
    return lambda: best_time(step, 10)


def log_prob_time(n: int, rank: int = 16) -> Callable[[], float]:
    """Seconds for `LowRankGaussian.log_prob` and its gradient at n points."""
    keys = jax.random.split(jax.random.key(0), 3)
    gaussian = bieqno.LowRankGaussian(
        jax.random.normal(keys[0], (n,)), jax.random.normal(keys[1], (n, rank)), jax.random.normal(keys[2], (n,))
    )
    work = jax.jit(jax.value_and_grad(lambda g: g.log_prob(jnp.zeros(n))))
    jax.block_until_ready(work(gaussian))
    return lambda: best_time(lambda: work(gaussian), max(3, 100_000 // n))


def alternate(measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure all in turns, so that a busy moment of the machine hits all alike."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(ROUNDS)]
    return {name: [turn[name] for turn in rounds] for name in measures}


def main() -> None:
    """Measure and print."""
    table = Table("what", "ours", "peer", "ratio", "bar")
    rows = []

    def add(what: str, ours: float, peer: float, ratio: float, bar: float, *, at_most: bool = False) -> None:
        sign = "<=" if at_most else ">="
        table.add_row(what, f"{ours:.4g}", f"{peer:.4g}", f"{ratio:.2f}", f"{sign} {bar}")
        met = ratio <= bar if at_most else ratio >= bar
        rows.append({"what": what, "ours": ours, "peer": peer, "ratio": ratio, "bar": f"{sign} {bar}", "met": met})

    for shape, microbatches in CASES:
        label = " x ".join(map(str, shape))
        times = alternate({"matmul": matmul_rate(), "ours": our_step(shape, microbatches), "torch": torch_step(shape)})
        ours, peer, peak = min(times["ours"]), min(times["torch"]), max(times["matmul"])
        written, done = (count / ours for count in step_operations(*shape))
        add(f"step {label}: written operations/s against a matrix product", written, peak, written / peak, 0.8)
        add(f"step {label}: executed operations/s against a matrix product", done, peak, done / peak, 0.8)
        add(f"step {label}: seconds against PyTorch", ours, peer, peer / ours, 1.3)
    sizes = (10**3, 10**4, 10**5)
    times = alternate({str(n): log_prob_time(n) for n in sizes})
    for small, large in pairwise(sizes):
        a, b = min(times[str(small)]), min(times[str(large)])
        add(f"log_prob and gradient: n = {large} against {small}", b, a, b / a, 13, at_most=True)
    Console().print(table)
    print(json.dumps({"benchmark": "operators", "rows": rows}))


if __name__ == "__main__":
    main()
