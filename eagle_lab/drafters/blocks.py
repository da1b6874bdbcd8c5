"""Building blocks of a draft network: rotary positions, attention, MLP, one decoder layer.

Blocks take parts and plain values. They know neither a cache nor a mask: attention over past
keys is the caller's `attend` function, so decoding (with a cache) and training (with its own
masks) run the same weights through the same lines.

Shapes: B rows, N columns, H hidden width, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half


class Attend(Protocol):
    """Attention of rotated queries over this call's keys and whatever the caller remembers."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [B, heads, n, d]; key, value [B, kv_heads, N, d] -> [B, heads, n, d]."""
        ...


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm over the last dimension, computed in float32 whatever the input."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., H] in the dtype of `hidden`."""
        weight = self.weight.float()
        normed = nn.functional.rms_norm(hidden.float(), self.normalized_shape, weight, self.eps)
        return normed.to(hidden.dtype)


_LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies depend on how long the text is."""


class Rotary:
    """Cosines and sines for the target's own rotary parameters, always kept in float32.

    Not a module on purpose: casting a drafter to half precision must not round the frequencies,
    which would blur positions in the thousands.
    """

    def __init__(
        self, *, head_dim: int, max_position_embeddings: int, rope_parameters: dict[str, Any]
    ) -> None:
        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_position_embeddings,
            rope_parameters=dict(rope_parameters),
        )
        self._embedding = LlamaRotaryEmbedding(config)

    def __call__(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [B, N] -> cosine and sine [B, N, d] in the dtype and device of `hidden`."""
        embedding = self._embedding
        if embedding.inv_freq.device != hidden.device:
            embedding.to(hidden.device)
        if embedding.rope_type in _LENGTH_DEPENDENT:
            return embedding(hidden, positions)
        halves = positions[:, :, None] * embedding.inv_freq  # [B, N, d / 2]
        angles = torch.cat((halves, halves), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        if embedding.attention_scaling != 1:
            cosine, sine = (part * embedding.attention_scaling for part in (cosine, sine))
        return cosine.to(hidden.dtype), sine.to(hidden.dtype)


class Attention(nn.Module):
    """Grouped-query projections around the caller's `attend`; no biases."""

    def __init__(
        self, *, input_size: int, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(input_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(input_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(input_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        attend: Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """hidden [B, N, input] -> [B, n, H]: all columns are keys, `columns` [n] are queries."""
        # In this order the fast layers (targets/cpu/patch.py) compute all three at once
        query = self._heads(self.q_proj(_take(hidden, columns)))
        key = self._heads(self.k_proj(hidden))
        value = self._heads(self.v_proj(hidden))
        key = _rotated(key, *rotary)
        query = _rotated(query, *(_take(part, columns) for part in rotary))
        attended = attend(query, key, value)  # [B, heads, n, d]
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _heads(self, projected: Tensor) -> Tensor:
        """[B, N, heads·d] -> [B, heads, N, d]."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """Gated feed-forward block; no biases."""

    def __init__(self, *, hidden_size: int, intermediate_size: int, activation: str) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.activation: Callable[[Tensor], Tensor] = ACT2FN[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(self.activation(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    """One pre-norm decoder layer whose residual stream is never normed.

    `input_norm=None` is the paper's EAGLE-1 layer, which feeds attention the raw input; the norm
    before the MLP is always there.
    """

    def __init__(
        self, *, input_norm: nn.Module | None, attention: Attention, mlp_norm: nn.Module, mlp: Mlp
    ) -> None:
        super().__init__()
        self.input_layernorm = input_norm
        self.self_attn = attention
        self.post_attention_layernorm = mlp_norm
        self.mlp = mlp

    def forward(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        attend: Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """hidden [B, N, H] -> [B, n, H], of the chosen `columns` [n] or of all."""
        attention_input = hidden if self.input_layernorm is None else self.input_layernorm(hidden)
        attended = self.self_attn(attention_input, rotary, attend, columns)
        hidden = _take(hidden, columns) + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def _take(states: Tensor, columns: Tensor | None) -> Tensor:
    """The chosen columns of [B, N, ...], all of them by default."""
    return states if columns is None else states[:, columns]


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions on one of query and key [B, heads, N, d]; cosine, sine [B, N, d]."""
    return states * cosine[:, None] + rotate_half(states) * sine[:, None]


def full_attention_rope(config: Any) -> dict[str, Any]:
    """Rotary parameters of a target's full-attention layers, from its Hugging Face config.

    Configs with one set per layer type (Gemma) hold a dictionary of dictionaries.
    """
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    parameters = dict(parameters.get("full_attention", parameters))
    parameters.setdefault("rope_type", "default")
    parameters.setdefault("rope_theta", float(getattr(config, "rope_theta", 10000.0)))
    parameters.pop("partial_rotary_factor", None)  # the drafter rotates its whole head
    return parameters
