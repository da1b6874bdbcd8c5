"""Scaled dot-product attention over a cache, one API for target and drafter.

Shapes: B rows, N query columns, S cache slots, d head width; `heads` query heads share `kv`
key-value heads in groups of heads // kv neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Attention output [B, heads, N, d].

    Args:
        query: [B, heads, N, d].
        key: [B, kv, S, d].
        value: [B, kv, S, d].
        mask: [B, 1, N, S] boolean, True = attend; every query attends to something.
        scaling: factor on the dot products.
        softcap: `softcap * tanh(score / softcap)` before the mask (Gemma-2).
    """
    batch, heads, num_queries, width = query.shape
    num_kv = key.shape[1]
    groups = heads // num_kv
    if groups > 1:  # queries of a group share their keys: fold them into more query rows
        query = query.reshape(batch, num_kv, groups * num_queries, width)
        mask = mask.repeat(1, 1, groups, 1)
    if softcap is None:
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling
        )
    else:
        scores = softcap * torch.tanh((query @ key.transpose(2, 3)) * (scaling / softcap))
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32)
        output = weights.to(value.dtype) @ value
    return output.reshape(batch, heads, num_queries, width)
