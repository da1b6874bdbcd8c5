"""A network's linear layers, RMS norms and whole decoder layers through the CPU kernels.

    use_fast_layers(network)            # float32 on a CPU; the network's code is not touched
    use_fast_decoder(decoder)           # then: Llama's layers in one kernel call each
    with plain_layers(network): ...     # as Hugging Face ships it

The modules stay what they are, with the same weights in the same place; only their `forward` is
another. Linear layers that read one input (query, key, value; gate, up) are computed in one call.
Passes of more than `ops.MAX_ROWS` rows, other dtypes and devices, and passes that need gradients
take the plain way. So does, for good, a module whose shape the kernels do not fit or whose
arithmetic is not what its name says: norms and layers are held against the original once.

A decoder layer is taken if it has the parts of Llama's (Qwen2, Qwen3, Mistral share them). Hooks on
parts of a layer do not run in the fast form; hooks on the layer do. `LayerCall` serves drafters,
too.

Shapes: B rows, T columns, K inputs (hidden width), N outputs, d head width.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu.ops import (
    applies,
    fits,
    is_packed,
    kernels,
    match_threads,
    multiply,
    pack_all,
    rms_norm,
    scratch,
)
from eagle_lab.targets.tree_pass import TreePass

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_PARTS = {
    "": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}


def use_fast_layers(network: nn.Module) -> None:
    """Give the layers of `network` that the kernels fit their fast form; once is enough."""
    fast: dict[nn.Module, Any] = {}
    for parent in network.modules():
        children = dict(parent.named_children())
        for names in _TOGETHER:
            layers: list[Any] = [children.get(name) for name in names]
            if all(map(_is_linear, layers)) and len({layer.in_features for layer in layers}) == 1:
                fast |= _group(layers)
        for child in children.values():
            if child not in fast and _is_linear(child):
                fast |= _group([child])
            elif (norm := _fast_norm(child)) is not None:
                fast[child] = norm
    for module, forward in fast.items():
        module.__dict__["forward"] = forward


def use_fast_decoder(decoder: nn.Module) -> None:
    """Give the layers of `decoder`, whose parts are fast already, their fast form."""
    for module in decoder.modules():
        if _is_llama_layer(module) and (layer := _fast_layer(module)) is not None:
            module.__dict__["forward"] = layer


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


class FastForward:
    """Base of the fast forms, by which `plain_layers` finds them."""


def _is_fast(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(getattr(forward, "func", forward), FastForward)


def _is_linear(module: nn.Module | None) -> bool:
    """Whether `module` is a linear layer in its original form that the kernel can read."""
    return type(module) is nn.Linear and "forward" not in module.__dict__ and fits(module.weight)


def _group(layers: Sequence[Any]) -> dict[nn.Module, Any]:
    """The fast forward of each of `layers`, which read the same input."""
    group = _LinearGroup(layers)
    return {layer: functools.partial(group, place) for place, layer in enumerate(layers)}


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
def _fast_norm(module: nn.Module) -> FastNorm | None:
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


class FastDecoderLayer(FastForward):
    """`forward` of a decoder layer in one call.

    Args:
        module: the layer.
        attention: the arguments of its attention, as noted in one pass.
    """

    def __init__(self, module: Any, attention: _Attention):
        self._module, self._attention = module, attention
        self._call = LayerCall(module, module.input_layernorm.forward.epsilon)

    def __call__(
        self,
        hidden_states: Tensor,
        *args: Any,
        position_embeddings: Any = None,
        tree_pass: TreePass | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states [B, T, K] -> [B, T, K]."""
        call, angles, noted = self._call, position_embeddings, self._attention
        if tree_pass is None or not call.takes(hidden_states, angles, tree_pass):
            kwargs |= {"position_embeddings": angles, "tree_pass": tree_pass}
            return type(self._module).forward(self._module, hidden_states, *args, **kwargs)
        return call(hidden_states, angles, tree_pass, noted.layer, noted.scaling, noted.window)


class _Attention(TreePass):
    """A causal pass over a few columns that notes the arguments of a layer's attention.

    Attributes:
        layer, scaling, window, softcap: see `TreePass.attend`.
    """

    def __init__(self, num_layers: int, num_columns: int):
        steps = torch.arange(num_columns)
        visible = (steps[:, None] >= steps)[None]
        super().__init__(TreeCache(num_layers, 1, fast=True), steps[None], visible)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """See `TreePass.attend`."""
        self.layer, self.scaling, self.window, self.softcap = layer, scaling, window, softcap
        return super().attend(layer, query, key, value, scaling, window, softcap)


def _is_llama_layer(module: nn.Module) -> bool:
    """Whether a module has a Llama layer's parts, no others, and each fits the kernel."""
    children = dict(module.named_children())
    if set(children) != _PARTS[""] or "forward" in module.__dict__:
        return False
    heads = dict(children["self_attn"].named_children())
    mlp = dict(children["mlp"].named_children())
    if not (set(heads) <= _PARTS["self_attn"] and set(mlp) <= _PARTS["mlp"]):
        return False
    parts = {**children, **heads, **mlp}
    linears = [part for name, part in parts.items() if name.endswith("_proj")]
    norms = [part.__dict__.get("forward") for name, part in parts.items() if "norm" in name]
    unbiased = [parts.get(name) for name in ("o_proj", "gate_proj", "up_proj", "down_proj")]
    return (
        len(linears) == 7
        and all(type(each) is nn.Linear and fits(each.weight) for each in linears)
        and all(getattr(each, "bias", None) is None for each in unbiased)
        and all(isinstance(each, FastNorm) and each.offset == 0 for each in norms)
        and len({getattr(each, "epsilon", None) for each in norms}) == 1
        and getattr(children["self_attn"], "head_dim", 1) % kernels().LANES == 0
    )


@torch.no_grad()
def _fast_layer(module: Any) -> FastDecoderLayer | None:
    """The fast form of a layer, if it computes what the original does."""
    width, head_width = module.input_layernorm.weight.shape[0], int(module.self_attn.head_dim)
    hidden = torch.linspace(-2.0, 2.5, 5 * width).sin().reshape(1, 5, width)
    turns = torch.linspace(0.0, 3.0, 5 * head_width // 2).reshape(1, 5, -1).repeat(1, 1, 2)
    angles = turns.cos(), turns.sin()
    attention = _Attention(module.self_attn.layer_idx + 1, 5)
    expected = module(hidden, position_embeddings=angles, tree_pass=attention)
    if not isinstance(expected, Tensor) or attention.softcap is not None:
        return None
    layer = FastDecoderLayer(module, attention)
    output = layer(hidden, position_embeddings=angles, tree_pass=attention)
    # Two ways of adding up agree to 1e-4 of the largest number
    return layer if (output - expected).abs().max() <= 1e-4 * expected.abs().max() else None


class LayerCall:
    """A decoder layer's weights and sizes, and the call of the kernel with them.

    Args:
        module: the layer, its parts named as in Llama's; `input_layernorm` may be None.
        epsilon: of its norms.
        packed: read packed copies of its weight matrices where packing changes none.
    """

    def __init__(self, module: Any, epsilon: float, *, packed: bool = False):
        heads, mlp = module.self_attn, module.mlp
        self._head_width = int(heads.head_dim)
        self._num_heads = heads.q_proj.out_features // self._head_width
        self._num_kv = heads.k_proj.out_features // self._head_width
        self._inner_width = mlp.gate_proj.out_features
        self._epsilon = epsilon
        projections = (heads.q_proj, heads.k_proj, heads.v_proj, heads.o_proj)
        matrices = [
            each.weight for each in (*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        ]
        if packed:
            matrices = pack_all(matrices, kernels().LANES)
        self._packed = is_packed(matrices[0])
        self._scratch_size = kernels().scratch_size(
            projections[0].in_features, self._num_heads * self._head_width,
            self._num_kv * self._head_width, self._inner_width,
        )  # fmt: skip
        self._like = torch.empty(0, self._num_kv, 0, self._head_width)  # a state in the cache
        first_norm = getattr(module.input_layernorm, "weight", None)
        self._norm: Tensor = module.post_attention_layernorm.weight
        norms = [getattr(heads, name, None) for name in ("q_norm", "k_norm")]
        self._weights = [
            *(first_norm, *matrices[:4], self._norm, *matrices[4:]),
            *(each.bias for each in (heads.q_proj, heads.k_proj, heads.v_proj)),
            *(None if norm is None else norm.weight for norm in norms),
        ]

    def takes(self, hidden: Tensor, angles: Any, tree_pass: TreePass) -> bool:
        """Whether the kernel can compute a pass over `hidden` [B, T, K]."""
        num_slots = tree_pass.cache.max_length + tree_pass.visible.shape[2]
        return (
            tree_pass.cache.fast
            and applies(hidden, self._norm)
            and num_slots >= kernels().ROWS
            and isinstance(angles, tuple)
            and angles[0].shape[-1] == self._head_width
            and angles[0].dtype is torch.float32
        )

    def __call__(
        self,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        tree_pass: TreePass,
        layer: int,
        scaling: float,
        window: int | None = None,
    ) -> Tensor:
        """`hidden` [B, T, K] -> [B, T, K].

        Args:
            hidden: the layer's input.
            angles: cosine and sine [B or 1, T, d].
            tree_pass: what its columns write and see.
            layer, scaling, window: see `TreePass.attend`.
        """
        hidden = hidden.contiguous()
        batch, num_tokens, width = hidden.shape
        cosine, sine = (angle.contiguous() for angle in angles)
        mask = tree_pass.mask(window).contiguous()
        cache = tree_pass.cache
        num_slots = cache.max_length + tree_pass.visible.shape[2]
        store = cache.reserve(num_slots, self._like)
        layer_stride, value_stride, *cache_strides = store.stride()[:4]
        keys = store.data_ptr() + 4 * layer * layer_stride  # addresses, without views
        outputs = torch.empty_like(hidden)
        match_threads()
        kernels().decoder_layer(
            hidden.data_ptr(), outputs.data_ptr(), scratch(batch * num_tokens * self._scratch_size),
            batch, num_tokens, width,
            self._num_heads, self._num_kv, self._head_width, self._inner_width, self._packed,
            *(0 if weight is None else weight.data_ptr() for weight in self._weights),
            cosine.data_ptr(), sine.data_ptr(), cosine.stride(0) if cosine.shape[0] > 1 else 0,
            keys, keys + 4 * value_stride, *cache_strides,
            cache.lengths.data_ptr(), tree_pass.offset, mask.data_ptr(), num_slots,
            scaling, self._epsilon,
        )  # fmt: skip
        return outputs
