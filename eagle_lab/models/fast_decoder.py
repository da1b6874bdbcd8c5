"""Decoder layers of the Llama family in one kernel call each.

A layer is taken if it has the family's parts and, held against its original once, computes the
same: Llama, Qwen2, Qwen3, Mistral and whatever else shares their form. Others keep their own
code, around fast linear layers and norms. Hooks on parts of a layer do not run in the fast form;
hooks on the layer do.

Shapes: B rows, T columns, K hidden width, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.models.cache import TreeCache
from eagle_lab.models.fast_layers import FastForward, FastNorm
from eagle_lab.models.fast_ops import fits, kernels
from eagle_lab.models.layer_call import LayerCall
from eagle_lab.models.tree_pass import TreePass

_PARTS = {
    "": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}


def use_fast_decoder(decoder: nn.Module) -> None:
    """Give the layers of `decoder`, whose parts are fast already, their fast form."""
    for module in decoder.modules():
        if _has_the_form(module) and (layer := _fast_form(module)) is not None:
            module.__dict__["forward"] = layer


class FastDecoderLayer(FastForward):
    """`forward` of a decoder layer in one call.

    Args:
        module: the layer.
        attention: what its attention asks for.
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
        call, angles, wanted = self._call, position_embeddings, self._attention
        if tree_pass is None or not call.takes(hidden_states, angles, tree_pass):
            kwargs |= {"position_embeddings": angles, "tree_pass": tree_pass}
            return type(self._module).forward(self._module, hidden_states, *args, **kwargs)
        return call(hidden_states, angles, tree_pass, wanted.layer, wanted.scaling, wanted.window)


class _Attention(TreePass):
    """A causal pass over a few columns that notes what a layer's attention asks for.

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


def _has_the_form(module: nn.Module) -> bool:
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
def _fast_form(module: Any) -> FastDecoderLayer | None:
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
    return layer if _close(output, expected) else None


def _close(output: Tensor, expected: Tensor) -> bool:
    """Whether two ways of adding up agree, to 1e-4 of the largest number."""
    return bool((output - expected).abs().max() <= 1e-4 * expected.abs().max())
