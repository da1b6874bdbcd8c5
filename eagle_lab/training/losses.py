"""The two losses of EAGLE-1 (arXiv 2401.15077, section 3.2), in float32 whatever comes in.

    L = 1.0 · SmoothL1(f̂, f) + 0.1 · CE(p, p̂)

SmoothL1 has beta 1 and is the mean over H; CE is against the target's soft distribution p. Each is
summed over the rows that count and divided by their number. With a reduced draft vocabulary p is
restricted to it and renormalized, and rows whose label lies outside do not count for CE: in greedy
text the label is the target's best token, so this is EAGLE-3's rule without the target's whole
distribution.

Distributions over a vocabulary are never held for more than `CHUNK` rows: each chunk's loss and
gradient are worked out before the next one's logits are made. Shapes: n rows, H hidden width, D
draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss, softmax

CHUNK = 256  # rows whose [CHUNK, D] logits exist at one time; more leave a CPU's cache


def feature_loss(predicted: Tensor, features: Tensor) -> Tensor:
    """SmoothL1 of f̂ [n, H] against f [n, H], mean over H: float32 [n]."""
    return smooth_l1_loss(predicted.float(), features.float(), beta=1.0, reduction="none").mean(-1)


@dataclass
class Sums:
    """Sums over rows, to be divided by their counts; `correct` counts greedy agreement.

    Attributes:
        feature, token: summed losses, scalars.
        num_rows, num_token_rows: rows counted by each.
        correct: rows whose draft argmax is the token label.
    """

    feature: Tensor
    token: Tensor
    num_rows: int
    num_token_rows: int
    correct: Tensor

    def detach(self) -> Sums:
        """The same numbers without their history."""
        return replace(self, feature=self.feature.detach(), token=self.token.detach())

    def loss(self, feature_weight: float, token_weight: float) -> Tensor:
        """Weighted means, 0 where nothing counts."""
        feature = self.feature / max(self.num_rows, 1)
        token = self.token / max(self.num_token_rows, 1)
        return feature_weight * feature + token_weight * token


class ChunkedTokenLoss(torch.autograd.Function):
    """Σ CE over rows, with the gradient towards `predicted` made on the way forward.

    forward(predicted [n, H], features [n, H], head) -> (sum, draft argmax [n]).
    `head` maps hidden states to draft logits z and is applied to both. A row's loss is
    logsumexp(ẑ) - p·ẑ, its gradient towards ẑ is p̂ - p; the head's own backward takes that to
    `predicted`.
    """

    @staticmethod
    def forward(
        ctx: Any, predicted: Tensor, features: Tensor, head: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """See the class."""
        needs_gradient = ctx.needs_input_grad[0]
        total = torch.zeros((), device=predicted.device)
        best = torch.empty(len(predicted), dtype=torch.long, device=predicted.device)
        gradient = torch.empty_like(predicted) if needs_gradient else predicted.new_empty(0)
        for start in range(0, len(predicted), CHUNK):
            rows = slice(start, start + CHUNK)
            hidden = predicted[rows].detach()
            with torch.set_grad_enabled(needs_gradient):
                hidden.requires_grad_(needs_gradient)
                logits = head(hidden)
            target_logits = head(features[rows])
            with torch.autocast(predicted.device.type, enabled=False):  # distributions in float32
                target_probs = softmax(target_logits.float(), dim=-1)
                scores = logits.detach().float()
                probs = softmax(scores, dim=-1)
                top, best[rows] = scores.max(-1)
                log_sum = top - probs.gather(-1, best[rows, None])[:, 0].log()
                total += (log_sum - torch.linalg.vecdot(target_probs, scores)).sum()
            if needs_gradient:
                towards_logits = probs.sub_(target_probs).to(logits.dtype)
                (gradient[rows],) = torch.autograd.grad(logits, hidden, towards_logits)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _grad_best: Tensor) -> tuple[Any, ...]:
        """The gradient made in `forward`, times what comes from above."""
        (gradient,) = ctx.saved_tensors
        return gradient * grad_total.to(gradient.dtype), None, None


def row_sums(
    drafter: Any,
    predicted: Tensor,
    features: Tensor,
    *,
    token_labels: Tensor,
    draft_ids: Tensor | None,
) -> tuple[Sums, Tensor]:
    """Losses of the rows that count at one step, and whether each row's draft token is right.

    Args:
        drafter: gives `logits`.
        predicted: f̂ [n, H]; features: the true ones [n, H].
        token_labels: the text's own next tokens [n], which a draft must hit.
        draft_ids: target id -> draft id or -1 [V]; None for the full vocabulary.

    Returns:
        sums, and bool [n].
    """
    labels = token_labels if draft_ids is None else draft_ids[token_labels]
    counted = (labels >= 0).nonzero()[:, 0]  # no draft hits a label that cannot be drafted
    token_sum, best = ChunkedTokenLoss.apply(predicted[counted], features[counted], drafter.logits)
    correct = torch.zeros_like(token_labels, dtype=torch.bool)
    correct[counted] = best == labels[counted]
    sums = Sums(
        feature=feature_loss(predicted, features).sum(),
        token=token_sum,
        num_rows=len(token_labels),
        num_token_rows=len(counted),
        correct=correct.sum(),
    )
    return sums, correct
