"""A trained filter as a file for other languages: an ONNX graph, or a StableHLO program.

The file holds one analysis as a function of arrays, for ensembles of any size: ``analysis(ensemble (N, n), observed (m),
noise (N, n)) -> posterior (N, n)``. NaN marks a missing value. All chance is in the noise, standard normal numbers: the same
numbers give the same analysis in every language.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, Float

from bieqno.assimilation import Filter, LocalEnNF, Observation, System
from bieqno.assimilation.observation_operators import Components
from bieqno.persistence.tensorfile import replace_file

INPUTS, OUTPUT = ("ensemble", "observed", "noise"), "posterior"
# Calls of a function inside a program, and where they keep it; a converter need not know them.
CALLS = {"custom_vjp_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vmap_call": "call", "jit": "jaxpr"}

Analysis = Callable[[Float[Array, "N n"], Float[Array, "m"], Float[Array, "N n"]], Float[Array, "N n"]]


def export_filter(
    filter: Filter, system: System, path: str | Path, *, format: str = "onnx", members: int | None = None
) -> None:
    """Write the analysis of a trained filter to a file, for any number of members or for a fixed one.

    Needs the extra ``bieqno[export]``, of which StableHLO takes flatbuffers only. A StableHLO file is read by
    `jax.export.deserialize`.
    """
    if format not in ("onnx", "stablehlo"):
        raise ValueError(f"a filter is exported as 'onnx' or 'stablehlo', got format={format!r}")
    if members is not None and members < 1:
        raise ValueError(f"an ensemble has at least one member, got members={members}")
    function = analysis_of(filter, system)
    count = members if members is not None else jax.export.symbolic_shape("N")[0]
    shapes = (count, system.size), (system.observed,), (count, system.size)
    inputs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    content = _stablehlo(function, inputs) if format == "stablehlo" else _onnx(function, inputs)
    replace_file(Path(path), content)


def analysis_of(filter: Filter, system: System) -> Analysis:
    """Return the analysis of a filter as a function of arrays alone."""
    if not isinstance(filter, LocalEnNF):
        raise TypeError(f"a LocalEnNF can be exported, got a {type(filter).__name__}")
    bases = [int(size) for size, *settings in filter.judged if settings]
    if bases:
        # Which one it is depends on the ensemble size, and the base has no place for noise.
        raise ValueError(
            f"at N = {', '.join(map(str, bases))} this filter is its base, a tuned LETKF, which training did not improve on: "
            "train it longer, or with more truths of these sizes, and export it then"
        )

    observation = system.observation
    if isinstance(observation.operator, Components):
        # The derivative of a slice, which a range of components is, pads between values: ONNX does not.
        observation = Observation(observation.operator.numbers, observation.error)

    def analysis(ensemble: Array, observed: Array, noise: Array) -> Array:
        window = observation.window(observed)
        return filter.analyse_with(noise, ensemble, window, jnp.ones(ensemble.shape[0], bool))

    return analysis


def _stablehlo(function: Analysis, inputs: Sequence[jax.ShapeDtypeStruct]) -> bytes:
    try:
        return bytes(jax.export.export(jax.jit(function))(*inputs).serialize())
    except ImportError as error:
        raise ImportError("StableHLO files are written with flatbuffers: pip install 'bieqno[export]'") from error


def _onnx(function: Analysis, inputs: Sequence[jax.ShapeDtypeStruct]) -> bytes:
    try:
        from jax2onnx import to_onnx
    except ImportError as error:
        raise ImportError("ONNX files are written by jax2onnx: pip install 'bieqno[export]'") from error
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it warns of shapes that it works out all the same
    # Traced before the converter, which replaces functions of jax.numpy by its own, some in 64 bits.
    traced = jax.make_jaxpr(function)(*inputs)

    def plain(*values: Array) -> Array:
        return _without_calls(traced, values)[0]

    model = to_onnx(plain, list(inputs), model_name="bieqno", input_names=list(INPUTS), output_names=[OUTPUT])
    return bytes(model.SerializeToString())


def _without_calls(program: core.ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
    """Evaluate a program, with the functions that it calls written out."""
    known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    known |= dict(zip(program.jaxpr.invars, values, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in program.jaxpr.eqns:
        given = [value(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            found = _without_calls(equation.params[CALLS[equation.primitive.name]], given)
        else:
            found = equation.primitive.bind(*given, **equation.params)
            found = found if equation.primitive.multiple_results else [found]
        known |= dict(zip(equation.outvars, found, strict=True))
    return [value(atom) for atom in program.jaxpr.outvars]
