"""What a drafter borrows from its target: embedding, head, logit scaling. Frozen, never saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from eagle_lab.models.fast_ops import linear


class Attached:
    """The target's frozen parts: embedding, head rows of the draft vocabulary, logit scaling.

    A plain object, so that none of it is a parameter, a buffer or part of `state_dict`.
    `head` maps hidden [..., H] to unscaled logits, through the fast layers if the target does.
    """

    def __init__(self, target: Any, kept: Tensor | None) -> None:
        self.target = target
        weight, bias = target.head_weight.detach(), getattr(target, "head_bias", None)
        if kept is not None:
            kept = kept.to(weight.device)
            weight, bias = weight[kept], None if bias is None else bias[kept]
        self.embedding: Callable[[Tensor], Tensor] = target.embedding
        self.head_weight: Tensor = weight  # [D or V, H]
        self.head_bias: Tensor | None = bias
        self.scale_logits: Callable[[Tensor], Tensor] = target.scale_logits

    def head(self, hidden: Tensor) -> Tensor:
        """Unscaled logits [..., D or V] of states [..., H]."""
        multiply = linear if getattr(self.target, "fast_layers", False) else nn.functional.linear
        return multiply(hidden.to(self.head_weight.dtype), self.head_weight, self.head_bias)
