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

from eagle_lab.models.cache import TreeCache, TreePass
from eagle_lab.models.fast_layers import FastForward, FastNorm
from eagle_lab.models.fast_ops import applies, fits, kernels, match_threads

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
        heads, mlp = module.self_attn, module.mlp
        self._head_width = int(heads.head_dim)
        self._num_heads = heads.q_proj.out_features // self._head_width
        self._num_kv = heads.k_proj.out_features // self._head_width
        self._inner_width = mlp.gate_proj.out_features
        self._epsilon = module.input_layernorm.forward.epsilon
        norms = [getattr(heads, name, None) for name in ("q_norm", "k_norm")]
        self._weights = [
            module.input_layernorm.weight,
            *(each.weight for each in (heads.q_proj, heads.k_proj, heads.v_proj, heads.o_proj)),
            module.post_attention_layernorm.weight,
            *(each.weight for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
        ]
        self._extras = [
            *(each.bias for each in (heads.q_proj, heads.k_proj, heads.v_proj)),
            *(None if norm is None else norm.weight for norm in norms),
        ]

    def __call__(
        self,
        hidden_states: Tensor,
        *args: Any,
        position_embeddings: Any = None,
        tree_pass: TreePass | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states [B, T, K] -> [B, T, K]."""
        if tree_pass is None or not self._takes(hidden_states, position_embeddings, tree_pass):
            kwargs |= {"position_embeddings": position_embeddings, "tree_pass": tree_pass}
            return type(self._module).forward(self._module, hidden_states, *args, **kwargs)
        return self._run(hidden_states.contiguous(), position_embeddings, tree_pass)

    def _takes(self, hidden: Tensor, angles: Any, tree_pass: TreePass) -> bool:
        num_slots = tree_pass.cache.max_length + tree_pass.visible.shape[2]
        return (
            tree_pass.cache.fast
            and applies(hidden, self._weights[0])
            and num_slots >= kernels().ROWS
            and isinstance(angles, tuple)
            and angles[0].shape[-1] == self._head_width
            and angles[0].dtype is torch.float32
        )

    def _run(self, hidden: Tensor, angles: tuple[Tensor, Tensor], tree_pass: TreePass) -> Tensor:
        batch, num_tokens, width = hidden.shape
        cosine, sine = (angle.contiguous() for angle in angles)
        mask = tree_pass.mask(self._attention.window).contiguous()
        like = hidden.new_empty(batch, self._num_kv, 0, self._head_width)
        cache, layer = tree_pass.cache, self._attention.layer
        keys, values = cache.room(layer, tree_pass.visible.shape[2], like)
        outputs = torch.empty_like(hidden)
        row_size = kernels().scratch_size(
            width, self._num_heads * self._head_width, self._num_kv * self._head_width,
            self._inner_width,
        )  # fmt: skip
        scratch = hidden.new_empty(batch * num_tokens * row_size)
        match_threads()
        kernels().decoder_layer(
            hidden.data_ptr(), outputs.data_ptr(), scratch.data_ptr(), batch, num_tokens, width,
            self._num_heads, self._num_kv, self._head_width, self._inner_width,
            *(weight.data_ptr() for weight in self._weights),
            *(0 if extra is None else extra.data_ptr() for extra in self._extras),
            cosine.data_ptr(), sine.data_ptr(), cosine.stride(0) if len(cosine) > 1 else 0,
            keys.data_ptr(), values.data_ptr(), *keys.stride()[:2],
            cache.lengths.data_ptr(), tree_pass.offset, mask.data_ptr(), keys.shape[2],
            self._attention.scaling, self._epsilon,
        )  # fmt: skip
        return outputs


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
