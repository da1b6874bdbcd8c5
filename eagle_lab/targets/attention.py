"""Scaled dot-product attention over a cache: under one mask, or in two parts that are merged.

The two parts are the committed prefix, which needs no mask, and the tree, which is small:

    slots    0 ... len-1 | len ... len+M-1
             prefix      | tree               a, b: log-sum-exp of a query's scores in each part
             every query | ancestors only

    softmax over both = sigmoid(a - b) * softmax over the prefix + sigmoid(b - a) * over the tree

The identity is exact, so the prefix can go to a kernel that knows no trees (`cuda.flash`), at the
cost of one length per row instead of a mask over all slots. Logarithms are natural. `prefix_part`
is the reference for such a kernel, in plain operations that run on every device.

Knows no model and no cache; target and drafter call it alike.

Shapes: B rows, N query columns, S slots, M tree slots, d head width; `heads` query heads share `kv`
key-value heads in groups of heads // kv neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

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


MAX_TREE_SLOTS = 256
"""Most slots of a tree part: the scores of a prompt's columns would not be small."""

PrefixPart = Callable[[Tensor, Tensor, Tensor, Tensor, float, float | None], tuple[Tensor, Tensor]]
"""A function with the arguments and results of `prefix_part`."""


def split_attention(
    query: Tensor,
    prefix: tuple[Tensor, Tensor],
    tree: tuple[Tensor, Tensor],
    lengths: Tensor,
    visible: Tensor,
    scaling: float,
    softcap: float | None,
    attend_prefix: PrefixPart,
) -> Tensor:
    """Attention output [B, heads, N, d] over prefix and tree.

    Args:
        query: [B, heads, N, d].
        prefix: keys and values [B, kv, S, d], of which row b sees the first `lengths[b]`.
        tree: keys and values [B, kv, M, d].
        lengths: [B].
        visible: [B, N, M] True where a column sees a tree slot; every column sees itself.
        scaling: factor on the dot products.
        softcap: `softcap * tanh(score / softcap)` before the mask (Gemma-2).
        attend_prefix: what computes the prefix part.
    """
    first = attend_prefix(query, *prefix, lengths, scaling, softcap)
    second = masked_part(query, *tree, visible[:, None], scaling, softcap)
    return merge(*first, *second).to(query.dtype)


def merge(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Attention over two sets of keys from the attention over each.

    Args:
        first: [..., d] output over one set; anything finite where it is empty.
        first_lse: [...] log-sum-exp of its scores, -inf where it is empty.
        second: [..., d] output over the other set.
        second_lse: [...] its log-sum-exp.

    Returns:
        [..., d] in the wider of the dtypes; where both sets are empty the mean of both outputs.
    """
    share = torch.sigmoid(first_lse - second_lse).nan_to_num(0.5)[..., None]  # -inf less -inf
    dtype = torch.promote_types(first.dtype, share.dtype)
    return torch.lerp(second.to(dtype), first.to(dtype), share.to(dtype))


def prefix_part(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scaling: float,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over the first `lengths` [B] of the slots of `key`, `value` [B, kv, S, d].

    Returns output [B, heads, N, d] and log-sum-exp [B, heads, N]; 0 and -inf for rows of length 0.
    """
    slots = torch.arange(key.shape[2], device=key.device)
    mask = (slots < lengths[:, None])[:, None, None]
    return masked_part(query, key, value, mask, scaling, softcap)


def masked_part(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of `query` [B, heads, N, d] over `key`, `value` [B, kv, S, d] under a mask.

    `mask` is boolean and broadcasts to [B, heads, N, S], True = attend. Returns output
    [B, heads, N, d] and log-sum-exp [B, heads, N], 0 and -inf where nothing is seen, in float32
    or wider.
    """
    batch, heads, num_queries, width = query.shape
    num_kv, num_slots = key.shape[1:3]
    dtype = torch.promote_types(query.dtype, torch.float32)
    # queries of a group share their keys: fold them into more query rows
    folded = query.reshape(batch, num_kv, heads // num_kv * num_queries, width).to(dtype)
    scores = (folded * scaling) @ key.to(dtype).transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(batch, heads, num_queries, num_slots).masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp(min=torch.finfo(dtype).min)[..., None]).exp()
    output = weights.view(batch, num_kv, -1, num_slots) @ value.to(dtype)
    return output.view(query.shape), lse
