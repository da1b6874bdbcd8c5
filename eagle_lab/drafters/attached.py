"""What a drafter borrows from its target: embedding, head, logit scaling. Frozen, never saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Attached:
    """The target's frozen parts: embedding, head rows of the draft vocabulary, logit scaling.

    A plain object, so that none of it is a parameter, a buffer or part of `state_dict`.
    `head` maps hidden [..., H] to unscaled logits and may be replaced by a faster equal one.
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
        self.head: Callable[[Tensor], Tensor] = self._linear
        self.scale_logits: Callable[[Tensor], Tensor] = target.scale_logits

    def _linear(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.head_weight.dtype)
        return nn.functional.linear(hidden, self.head_weight, self.head_bias)
