"""The small networks that embed the elements of a set and fit the result.

A *network* is any callable that takes one vector to one vector, ``[p] -> [q]``; the operators `vmap` it
over the elements of a set. `MLP` is the default; a module of Equinox or of your own serves as well.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bieqno.arguments import checked
from bieqno.operators.fixed import FourierFeatures

Network: TypeAlias = Callable[..., Any]


class NetworkSettings(TypedDict, total=False):
    """Settings that all default networks inside an operator share."""

    activation: Callable[[Array], Array]
    residual: bool


class MLPSettings(NetworkSettings, total=False):
    """The settings of `MLP` beside its width that an operator hands to its default networks."""

    depth: int
    fourier_features: int
    fourier_scale: float


class MLP(eqx.Module):
    """A multi-layer perceptron that accepts its input in parts.

    ``mlp(a, b)`` is ``mlp(concatenate([a, b]))``, computed without the concatenation: a part that all elements of a
    set share (a pooled embedding, a context) is multiplied by its columns of the first layer once, not once per element.

    Args:
        depth: number of linear layers, at least 1.
        activation: applied after every layer but the last.
        residual: add its input to every hidden layer that keeps the width.
        fourier_features: if positive, that many `FourierFeatures` are computed from the input first.
        fourier_scale: their typical frequency, in cycles per unit of the input.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> mlp = MLP(3, 2, key=jax.random.key(0))
        >>> mlp(jnp.ones(3)).shape, mlp(jnp.ones(2), jnp.ones(1)).shape
        ((2,), (2,))
    """

    takes_parts: ClassVar[bool] = True
    features: FourierFeatures | None
    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)
    residual: bool = eqx.field(static=True)

    @checked()
    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        width: int = 64,
        depth: int = 3,
        activation: Callable[[Array], Array] = jax.nn.relu,
        residual: bool = False,
        fourier_features: int = 0,
        fourier_scale: float = 1.0,
        key: PRNGKeyArray,
    ) -> None:
        for name, size in [("in_size", in_size), ("out_size", out_size), ("width", width), ("depth", depth)]:
            if size < 1:
                raise ValueError(f"an MLP needs {name} of at least 1, got {size}")
        if fourier_features < 0:
            raise ValueError(f"fourier_features must not be negative, got {fourier_features}")
        feature_key, *keys = jax.random.split(key, depth + 1)
        self.features = None
        if fourier_features > 0:
            self.features = FourierFeatures(in_size, fourier_features, scale=fourier_scale, key=feature_key)
            in_size += 2 * fourier_features
        sizes = [in_size, *[width] * (depth - 1), out_size]
        self.layers = tuple(_initial_layer(a, b, key=k) for (a, b), k in zip(pairwise(sizes), keys, strict=True))
        self.activation, self.residual = activation, residual

    def __check_init__(self) -> None:
        if not self.layers:
            raise ValueError("an MLP needs at least one layer")
        for layer in self.layers:
            check_linear(layer)
        if not callable(self.activation):
            raise ValueError(f"an activation is a function, got {self.activation!r}")
        for before, after in pairwise(self.layers):
            given, taken = before.weight.shape[0], after.weight.shape[1]
            if given != taken:
                raise ValueError(f"a layer of {given} outputs is followed by one of {taken} inputs")

    @checked()
    def __call__(self, *parts: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply the network to the concatenation of `parts` along their first axis; other axes are broadcast."""
        # A first layer takes the parts one by one: under a `vmap` what the parts share is computed once.
        only = len(self.layers) == 1 and self.features is None
        return apply_linear(self.layers[-1], *(parts if only else (self.before_last(*parts),)))

    def before_last(self, *parts: Float[Array, "..."], begun: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Return the input of the last layer; `begun` is the first layer's product with the parts before these, if known."""
        if self.features is not None:
            parts = (self.features(jnp.concatenate(parts)),)
        if len(self.layers) == 1:
            return jnp.concatenate(parts)
        first, *others, _ = self.layers
        hidden = apply_linear(first, *parts, begun=begun)
        for layer in others:
            following = apply_linear(layer, self.activation(hidden))
            hidden = hidden + following if self.residual and following.shape == hidden.shape else following
        return self.activation(hidden)


def _initial_layer(in_size: int, out_size: int, *, key: PRNGKeyArray) -> eqx.nn.Linear:
    """Return a layer that keeps the variance behind rectifying activations, with a bias of zero."""
    layer = eqx.filter_eval_shape(eqx.nn.Linear, in_size, out_size, key=key)  # draws nothing, for both are replaced
    weight = jax.nn.initializers.he_normal(in_axis=1, out_axis=0)(key, (out_size, in_size))
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros(out_size)))


def apply_linear(
    layer: eqx.nn.Linear, *parts: Float[Array, "..."], begun: Float[Array, "..."] | None = None
) -> Float[Array, "..."]:
    """Return ``layer(concatenate(parts))`` along the first axis, each part times its own columns of the weight."""
    size = sum(len(part) for part in parts)
    start = layer.weight.shape[1] - size
    if start < 0 or (start and begun is None):
        shapes = " + ".join(str(len(part)) for part in parts)
        raise ValueError(f"the network takes {layer.weight.shape[1]} values, got {shapes} = {size}")
    result = bias_of(layer, max(part.ndim for part in parts) - 1) + (0.0 if begun is None else begun)
    for part in parts:
        result = result + jnp.tensordot(layer.weight[:, start : start + len(part)], part, 1)
        start += len(part)
    return result


def bias_of(layer: eqx.nn.Linear, axes: int = 0) -> Float[Array, "..."]:
    """Return the bias of a layer, zeros if it has none, with further axes of length one."""
    bias = jnp.zeros(layer.weight.shape[0], layer.weight.dtype) if layer.bias is None else layer.bias
    return bias.reshape(-1, *[1] * axes)


def apply_network(network: Network, *parts: Array) -> Array:
    """Apply any network to the concatenation of `parts`, in parts where it knows how to (`takes_parts`)."""
    if getattr(network, "takes_parts", False) or len(parts) == 1:
        return network(*parts)
    return network(jnp.concatenate(parts))


def fitting_net(
    given: Network | None, in_size: int, out_size: int | None, *, width: int, key: PRNGKeyArray, network: MLPSettings
) -> Network | None:
    """Return the fitting net of an operator: the given one, the default `MLP`, or none for `out_size` None (lean form)."""
    if out_size is None and given is not None:
        raise ValueError("out_size=None leaves the fitting net out, but one was given")
    if out_size is None or given is not None:
        return given
    plain: MLPSettings = {**network, "fourier_features": 0}  # they are of the elements only
    return MLP(in_size, out_size, width=width, key=key, **plain)


def check_linear(layer: eqx.nn.Linear) -> None:
    """Refuse a linear layer whose arrays are not what its sizes say."""
    expected = [(layer.out_features, layer.in_features), (layer.out_features,)][: 1 + layer.use_bias]
    arrays = [layer.weight, layer.bias][: 1 + layer.use_bias]
    for array, shape in zip(arrays, expected, strict=True):
        if array is None or array.shape != shape or not jnp.issubdtype(array.dtype, jnp.inexact):
            raise ValueError(f"a linear layer of these sizes holds floating-point numbers of shape {shape}")


def shape_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shape and type of a function's result, which is known where all arrays had these shapes before."""
    leaves, tree = jax.tree.flatten((function, arguments))
    described = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves)
    try:
        hash((described, tree))
    except TypeError:
        return eqx.filter_eval_shape(function, *arguments)
    return _traced_once(described, tree)


@lru_cache(maxsize=1024)
def _traced_once(leaves: tuple[Any, ...], tree: Any) -> Any:
    function, arguments = jax.tree.unflatten(tree, leaves)
    return eqx.filter_eval_shape(function, *arguments)


def output_size(network: Network, in_size: int, *, role: str) -> int:
    """Return the length of a network's output for `in_size` values; ValueError if it does not map vectors so."""
    try:
        out = shape_of(network, jax.ShapeDtypeStruct((in_size,), jnp.zeros(()).dtype))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{role} does not accept a vector of {in_size} values: {error}") from error
    if getattr(out, "ndim", None) != 1:
        raise ValueError(f"{role} must return one vector, got {out}")
    return int(out.shape[0])


def check_fit(fit: Network | None, in_size: int, out_size: int) -> None:
    """Refuse a fitting net that does not take `in_size` values to `out_size`; without one, the two must be equal."""
    role = "the lean form" if fit is None else "the fitting network"
    found = in_size if fit is None else output_size(fit, in_size, role=role)
    if found != out_size:
        raise ValueError(f"{role} must return {out_size} values, got {found}")
