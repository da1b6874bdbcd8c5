"""Fast CPU layers: a network's linear layers and RMS norms through the kernels of `kernels.py`.

    use_fast_layers(network)            # float32 on a CPU; the network's code is not touched
    with plain_layers(network): ...     # as Hugging Face ships it

The layers stay the modules they are, with the same weights in the same place; only their
`forward` is another. Linear layers that read one input (query, key, value; gate, up) are computed
in one call. Passes of more than `fast_ops.MAX_ROWS` rows, other dtypes and devices, and passes
that need gradients take the plain way. So does, for good, any layer whose shape the kernel does
not fit or whose arithmetic is not what its name says: each norm is held against the original once.

Shapes: K inputs, N outputs of a layer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.models.fast_ops import applies, fits, multiply, rms_norm

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def use_fast_layers(network: nn.Module) -> None:
    """Give the layers of `network` that the kernels fit their fast form; once is enough."""
    fast: dict[nn.Module, Any] = {}
    for parent in network.modules():
        children = dict(parent.named_children())
        for names in _TOGETHER:
            layers: list[Any] = [children.get(name) for name in names]
            if all(map(_is_linear, layers)) and len({layer.in_features for layer in layers}) == 1:
                fast |= _together(layers)
        for child in children.values():
            if child not in fast and _is_linear(child):
                fast |= _together([child])
            elif (norm := _norm(child)) is not None:
                fast[child] = norm
    for module, forward in fast.items():
        module.__dict__["forward"] = forward


@contextmanager
def plain_layers(network: nn.Module) -> Iterator[None]:
    """The layers of `network` in their original form until the block ends."""
    fast = [module for module in network.modules() if _is_fast(module)]
    forwards = [module.__dict__.pop("forward") for module in fast]
    try:
        yield
    finally:
        for module, forward in zip(fast, forwards, strict=True):
            module.__dict__["forward"] = forward


def _is_fast(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(getattr(forward, "func", forward), FastForward)


def _is_linear(module: nn.Module | None) -> bool:
    """Whether `module` is a linear layer in its original form that the kernel can read."""
    return type(module) is nn.Linear and "forward" not in module.__dict__ and fits(module.weight)


def _together(layers: Sequence[Any]) -> dict[nn.Module, Any]:
    """The fast forward of each of `layers`, which read the same input."""
    group = _LinearGroup(layers)
    return {layer: functools.partial(group, place) for place, layer in enumerate(layers)}


class FastForward:
    """What `plain_layers` takes for a fast form."""


class _LinearGroup(FastForward):
    """Linear layers that are called one after the other with the same input.

    The first call computes all and holds the results until the last has been fetched. A call with
    another input than the one held computes anew, so any order of calls is right.
    """

    def __init__(self, layers: Sequence[nn.Linear]):
        self._layers = layers
        self._held: tuple[Tensor, list[Tensor]] | None = None

    def __call__(self, place: int, inputs: Tensor) -> Tensor:
        """Output [..., N] of layer `place` for `inputs` [..., K]."""
        layer = self._layers[place]
        weights = [each.weight for each in self._layers]
        if not all(applies(inputs, weight) for weight in weights):
            return nn.Linear.forward(layer, inputs)
        held = self._held
        if place == 0 or held is None or held[0] is not inputs:
            held = inputs, multiply(inputs, weights)
        self._held = None if place == len(weights) - 1 else held
        output = held[1][place]
        return output if layer.bias is None else output + layer.bias


class FastNorm(FastForward):
    """An RMS norm: x / rms(x) * (offset + weight)."""

    def __init__(self, module: nn.Module, offset: float, epsilon: float):
        self._module, self.offset, self.epsilon = module, offset, epsilon

    def __call__(self, inputs: Tensor) -> Tensor:
        """[..., K] -> [..., K]."""
        weight: Any = self._module.weight
        if not applies(inputs, weight):
            return type(self._module).forward(self._module, inputs)
        return rms_norm(inputs, weight, self.offset, self.epsilon)


@torch.no_grad()
def _norm(module: nn.Module) -> FastNorm | None:
    """The fast form of `module` if it is an RMS norm, in one of its usual forms."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    named = type(module).__name__.endswith("RMSNorm") and "forward" not in module.__dict__
    if not (named and isinstance(epsilon, float) and weight is not None and weight.dim() == 1):
        return None
    probe = torch.linspace(-3.0, 4.0, 2 * len(weight)).reshape(2, -1)
    if not applies(probe, weight):
        return None
    expected = type(module).forward(module, probe)
    for offset in (0.0, 1.0):  # Gemma stores the weight less one
        norm = FastNorm(module, offset, epsilon)
        if torch.allclose(norm(probe), expected, rtol=1e-5, atol=1e-6):
            return norm
    return None
