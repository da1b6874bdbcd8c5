"""What a drafter borrows from its target: embedding, head, logit scaling. Frozen, never saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from eagle_lab.targets.cpu.ops import fits, kernels, linear, pack, round_weights


class Attached:
    """The target's frozen parts: embedding, head rows of the draft vocabulary, logit scaling.

    A plain object, so that none of it is a parameter, a buffer or part of `state_dict`.
    `head` maps hidden [..., H] to unscaled logits, through the fast layers if the target does.
    """

    def __init__(self, target: Any, kept: Tensor | None, *, rounded: bool = False) -> None:
        """`kept`: ids of the draft vocabulary [D], None for all; `rounded`: round their head rows
        to bfloat16.
        """
        self.target = target
        self.rounded = rounded
        weight, bias = target.head_weight.detach(), getattr(target, "head_bias", None)
        if kept is not None:
            kept = kept.to(weight.device)
            weight, bias = weight[kept], None if bias is None else bias[kept]
            weight = round_weights(weight) if rounded else weight
        self.embedding: Callable[[Tensor], Tensor] = target.embedding
        self.head_weight: Tensor = weight  # [D or V, H]
        self.head_bias: Tensor | None = bias
        self.scale_logits: Callable[[Tensor], Tensor] = target.scale_logits

    @cached_property
    def _packed(self) -> Tensor | None:
        """The head's rows in half the bytes, where the kernel can read them."""
        weight = self.head_weight
        return pack(weight, kernels().LANES) if fits(weight) else None

    def head(self, hidden: Tensor) -> Tensor:
        """Unscaled logits [..., D or V] of states [..., H]."""
        hidden = hidden.to(self.head_weight.dtype)
        if getattr(self.target, "fast_layers", False):
            return linear(hidden, self.head_weight, self.head_bias, self._packed)
        return nn.functional.linear(hidden, self.head_weight, self.head_bias)
