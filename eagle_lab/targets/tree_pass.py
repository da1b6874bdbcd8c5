"""One forward pass over a tree: what it writes into the cache and what its columns see.

    use_tree_attention(model)                                  # once
    model(..., tree_pass=TreePass(cache, positions, visible))  # every layer attends through it

A Hugging Face model attends by the function that its attention interface finds under
`ATTENTION_NAME`; that function hands queries, keys and values to the call's `TreePass`. Any
architecture that uses the interface and passes keyword arguments on can be a target; sliding
windows and soft-capped scores are arguments of the call. A drafter calls `TreePass.attend` itself.

Attention goes over the whole cache under one mask, by the CPU kernels or torch's SDPA, or is split
into prefix and tree (`attention`).

Shapes: B rows, N columns, M tree slots, S attended slots, kv heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from eagle_lab.errors import UserError
from eagle_lab.targets.attention import (
    MAX_TREE_SLOTS,
    PrefixPart,
    attention,
    prefix_part,
    split_attention,
)
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu import ops
from eagle_lab.targets.cuda.flash import prefix_kernel


class TreePass:
    """What one forward pass writes and sees: the columns of a tree (or a part of it).

    Args:
        cache: where keys and values go.
        positions: [B, N] rotary positions of the columns.
        visible: [B, N, M] True where a column sees a tree slot; the columns of this pass are the
            last N of the M slots. Every column sees itself.
    """

    def __init__(self, cache: TreeCache, positions: Tensor, visible: Tensor):
        self.cache = cache
        self.positions = positions
        self.visible = visible
        self.offset = visible.shape[2] - positions.shape[1]
        self._masks: dict[int | None, Tensor] = {}

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
        """Write this pass's keys and values, then attend to all that its columns see.

        Takes query [B, heads, N, d], key and value [B, kv, N, d]; returns [B, heads, N, d].
        """
        tree = (key, value) if self.offset == 0 else None
        key, value = self.cache.write(layer, key, value, self.offset)
        attend_prefix = self._prefix_part(query, key.shape[1], window, softcap)
        if attend_prefix is not None:
            lengths, end = self.cache.lengths, self.cache.max_length
            prefix, tree = (key[:, :, :end], value[:, :, :end]), tree or self._tree(key, value)
            return split_attention(
                query, prefix, tree, lengths, self.visible, scaling, softcap, attend_prefix
            )
        mask = self.mask(window)
        if self.cache.fast and softcap is None and ops.can_attend(query, key):
            return ops.attend(query, key, value, mask, scaling)
        return attention(query, key, value, mask, scaling, softcap)

    def _prefix_part(
        self, query: Tensor, num_kv: int, window: int | None, softcap: float | None
    ) -> PrefixPart | None:
        """The function for the prefix alone; None where one mask has to cover prefix and tree.

        A window that cuts into the prefix cuts in another place for each depth of the tree, which
        takes a mask; one that reaches beyond the start of every row has no effect.
        """
        cache, num_slots = self.cache, self.visible.shape[2]
        cuts = window is not None and cache.max_length + num_slots > window
        if cache.attention == "sdpa" or cuts or cache.max_length == 0 or num_slots > MAX_TREE_SLOTS:
            return None
        plain = prefix_part if cache.attention == "split" else None
        return prefix_kernel(query, num_kv, softcap) or plain

    def _tree(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The tree slots [B, kv, M, d] of `key`, `value` [B, kv, S, d]."""
        columns = torch.arange(self.visible.shape[2], device=key.device)
        slots = (self.cache.lengths[:, None] + columns)[:, None, :, None]
        index = slots.expand(-1, key.shape[1], -1, key.shape[3])
        return key.gather(2, index), value.gather(2, index)

    def mask(self, window: int | None = None) -> Tensor:
        """[B, 1, N, S] True = attend: the committed prefix and the visible tree slots.

        `window` is a sliding window: a column at position p sees positions above p - window.
        """
        if window not in self._masks:
            self._masks[window] = self._build_mask(window)
        return self._masks[window]

    def _build_mask(self, window: int | None) -> Tensor:
        num_columns, num_slots = self.visible.shape[1:]
        if self.cache.fast and window is None and self.visible.is_cpu:
            return ops.tree_mask(
                self.cache.lengths, self.visible, self.cache.max_length + num_slots
            )
        lengths = self.cache.lengths[:, None]
        slots = torch.arange(self.cache.max_length + num_slots, device=lengths.device)
        tree_slots = lengths + torch.arange(num_slots, device=lengths.device)
        prefix = (slots < lengths)[:, None].repeat(1, num_columns, 1)
        mask = prefix.scatter(2, tree_slots[:, None].expand_as(self.visible), self.visible)
        if window is not None:
            if self.offset:
                raise ValueError("a sliding window needs all tree slots in one pass")
            places = slots.repeat(len(lengths), 1).scatter(1, tree_slots, self.positions)
            mask = mask & (places[:, None] > self.positions[:, :, None] - window)
        return mask[:, None]


ATTENTION_NAME = "eagle_lab_tree"


def use_tree_attention(model: Any) -> None:
    """Make `model` attend through the `tree_pass` argument of its calls.

    Raises:
        UserError: it does not use the attention interface of transformers.
    """
    try:
        model.set_attn_implementation(ATTENTION_NAME)
    except ValueError as error:
        raise UserError(
            f"{type(model).__name__} does not use the attention interface of transformers"
        ) from error


def _tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    tree_pass: TreePass | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form transformers expects; returns [B, N, heads, d]."""
    if tree_pass is None or kwargs.get("s_aux") is not None:
        raise UserError(
            f"{type(module).__name__} cannot be a target: its attention "
            + ("uses sinks" if tree_pass else "does not receive keyword arguments of the model")
        )
    output = tree_pass.attend(module.layer_idx, query, key, value, scaling, sliding_window, softcap)
    return output.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _tree_attention)
