"""Drafting one branch, token after token, with whatever says what may come next.

Greedy decoding takes the best token at each step. At T > 0 tokens are drawn from the drafter's
own law q, which `verify` needs to accept them with min(1, p/q); or the best token is taken there,
too, a point-mass proposal. Where a branch ends may depend on the tokens drawn so far, never on the
one drawn next, which keeps it lossless.

Shapes: B rows, G drafted tokens, D tokens that can be drafted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.decoding.proposer import Context
from eagle_lab.errors import UserError
from eagle_lab.sampling import Purpose, Sampling, draw


@dataclass
class Chain:
    """Drafted branches of a batch.

    Attributes:
        tokens: [B, G] as columns of the logits they came from; G may be 0.
        counts: [B] how many of a row's tokens are real.
        laws: [B, G, D] what they were drawn from; None if they were chosen.
    """

    tokens: Tensor
    counts: Tensor
    laws: Tensor | None


@dataclass
class Draws:
    """How drafted tokens are drawn: the run's law, and a coin for each token [B, G]."""

    sampling: Sampling
    coins: Tensor

    @classmethod
    def of(cls, context: Context, num_draft_tokens: int) -> Draws | None:
        """The run's own, None for greedy decoding."""
        if context.sampling.greedy:
            return None
        places = context.root_positions[:, None]
        coins = context.coins.toss(places, Purpose.DRAFT, num_draft_tokens)[:, 0]
        return cls(context.sampling, coins)


def check_stop_confidence(method: str, value: float) -> float:
    """`value`, a probability at which drafting stops.

    Raises:
        UserError: it is outside [0, 1); 0 never stops.
    """
    if not 0 <= value < 1:
        raise UserError(f"{method}: stop_confidence={value} must be in [0, 1); 0 never stops")
    return value


def draft_chain(
    next_logits: Callable[[Tensor | None], Tensor],
    wanted: Sequence[int],
    *,
    device: torch.device,
    draws: Draws | None = None,
    stop_confidence: float = 0.0,
) -> Chain:
    """Draft up to `wanted` [B] tokens for each row, all rows together.

    Args:
        next_logits: given the tokens drafted last [B] (None at first), the logits [B, D] of what
            follows.
        wanted: longest branch of each row.
        device: of the tokens.
        draws: draw tokens; None takes the best ones.
        stop_confidence: a row's branch ends where its probability, the best next token included,
            is less than this; 0 never stops.
    """
    if len(set(wanted)) == 1:  # made on the device, nothing to send there
        most = torch.full((len(wanted),), wanted[0], device=device)
    else:
        most = torch.tensor(wanted, device=device)
    counts = torch.zeros_like(most)
    path = torch.zeros(len(most), device=device)  # log-probability of each row's branch
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    for step in range(max(wanted)):
        logits = next_logits(tokens[-1] if tokens else None)
        going = (counts == step) & (step < most)
        if stop_confidence > 0:
            log_probs = torch.log_softmax(logits.float(), dim=-1)
            going &= path + log_probs.amax(-1) >= math.log(stop_confidence)
            if not bool(going.any()):
                break
        if draws is None:
            tokens.append(logits.argmax(-1))
        else:
            laws.append(draws.sampling.probs(logits))
            tokens.append(draw(laws[-1], draws.coins[:, step]))
        if stop_confidence > 0:
            path = path + log_probs.gather(1, tokens[-1][:, None])[:, 0]
        counts = counts + going
    return Chain(
        tokens=torch.stack(tokens, dim=1) if tokens else most[:, None][:, :0],
        counts=counts,
        laws=torch.stack(laws, dim=1) if laws else None,
    )
