"""The losses of drafters, in float32 whatever comes in (EAGLE-1: arXiv 2401.15077, section 3.2).

    L = 1.0 · SmoothL1(f̂, f) + 0.1 · CE(p, p̂)

SmoothL1 has beta 1 and is the mean over H; CE is against the target's soft distribution p. Each is
summed over the rows that count and divided by their number. With a reduced draft vocabulary p is
restricted to it and renormalized, and rows whose label lies outside do not count for CE: in greedy
text the label is the target's best token, so this is EAGLE-3's rule without the target's whole
distribution.

Draft logits and the target's come from two `Head`s over one vocabulary, which may be the same.
Distributions over it are never held for more than `CHUNK` rows: each chunk's loss and gradient are
worked out before the next one's logits are made. Shapes: n rows, S width of the drafter's state, F
of what the target's head reads, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss, softmax

Head = Callable[[Tensor], Tensor]
"""States [n, S or F] -> logits [n, D]."""
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
    """Σ CE over rows, with its gradients made on the way forward.

    forward(states [n, S], draft_head, targets [n, F], target_head, *weights)
        -> (sum, draft argmax [n]).
    A row's loss is logsumexp(ẑ) - p·ẑ for draft logits ẑ and the target's distribution p, its
    gradient towards ẑ is p̂ - p; the draft head's own backward takes that to `states` and to its
    learned `weights`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        draft_head: Head,
        targets: Tensor,
        target_head: Head,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See the class."""
        needs_gradient = any(ctx.needs_input_grad)
        total = torch.zeros((), device=states.device)
        best = torch.empty(len(states), dtype=torch.long, device=states.device)
        gradient = torch.empty_like(states) if needs_gradient else states.new_empty(0)
        of_weights = [torch.zeros_like(weight) for weight in weights if needs_gradient]
        for start in range(0, len(states), CHUNK):
            rows = slice(start, start + CHUNK)
            hidden = states[rows].detach()
            with torch.set_grad_enabled(needs_gradient):
                hidden.requires_grad_(needs_gradient)
                logits = draft_head(hidden)
            target_logits = target_head(targets[rows])
            with torch.autocast(states.device.type, enabled=False):  # distributions in float32
                target_probs = softmax(target_logits.float(), dim=-1)
                scores = logits.detach().float()
                probs = softmax(scores, dim=-1)
                top, best[rows] = scores.max(-1)
                log_sum = top - probs.gather(-1, best[rows, None])[:, 0].log()
                total += (log_sum - torch.linalg.vecdot(target_probs, scores)).sum()
            if needs_gradient:
                towards_logits = probs.sub_(target_probs).to(logits.dtype)
                inputs = (hidden, *weights)
                gradient[rows], *more = torch.autograd.grad(logits, inputs, towards_logits)
                for held, one in zip(of_weights, more, strict=True):
                    held += one
        ctx.save_for_backward(gradient, *of_weights)
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _grad_best: Tensor) -> tuple[Any, ...]:
        """The gradients made in `forward`, times what comes from above."""
        of_states, *of_weights = (one * grad_total.to(one.dtype) for one in ctx.saved_tensors)
        return of_states, None, None, None, *of_weights


def row_sums(
    states: Tensor,
    draft_head: Head,
    targets: Tensor,
    target_head: Head,
    *,
    labels: Tensor,
    features: Tensor | None = None,
    head_weights: Sequence[Tensor] = (),
) -> tuple[Sums, Tensor]:
    """Losses of the rows that count at one step, and whether each row's draft token is right.

    Args:
        states: the drafter's [n, S].
        draft_head: makes its logits of them.
        targets: [n, F]; target_head: makes the target's logits of them.
        labels: draft ids of the text's own next tokens [n], -1 where the drafter cannot say it.
        features: what the states themselves should equal [n, S]; None for no feature loss.
        head_weights: what the draft head learns, if it does.

    Returns:
        sums, and bool [n].
    """
    counted = (labels >= 0).nonzero()[:, 0]  # no draft hits a label that cannot be drafted
    token_sum, best = ChunkedTokenLoss.apply(
        states[counted], draft_head, targets[counted], target_head, *head_weights
    )
    correct = torch.zeros_like(labels, dtype=torch.bool)
    correct[counted] = best == labels[counted]
    feature_sum = token_sum.detach() * 0
    if features is not None:
        feature_sum = feature_loss(states, features).sum()
    sums = Sums(
        feature=feature_sum,
        token=token_sum,
        num_rows=len(labels),
        num_token_rows=len(counted),
        correct=correct.sum(),
    )
    return sums, correct
