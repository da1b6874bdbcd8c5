"""Drafting one branch, token after token, with whatever says what may come next.

Greedy decoding takes the best token at each step. At T > 0 tokens are drawn from the drafter's
own distribution q, which `verify` needs to accept them with min(1, p/q); or the best token is
taken there, too, a point-mass proposal. Where a branch ends may depend on the tokens drawn so far,
never on the one drawn next, which keeps it lossless.

Shapes: B rows, G drafted tokens, D tokens that can be drafted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Purpose, Sampling, draw
from eagle_lab.errors import UserError


@dataclass
class Chain:
    """Drafted branches of a batch.

    Attributes:
        tokens: [B, G] as columns of the logits they came from; G may be 0.
        counts: [B] how many of a row's tokens are real.
        distributions: [B, G, D] what they were drawn from; None if they were chosen.
    """

    tokens: Tensor
    counts: Tensor
    distributions: Tensor | None


@dataclass
class Draws:
    """How drafted tokens are drawn: the run's distribution, and a uniform for each token [B, G]."""

    sampling: Sampling
    uniforms: Tensor

    @classmethod
    def of(cls, context: Context, num_draft_tokens: int) -> Draws | None:
        """The run's own, None for greedy decoding."""
        if context.sampling.greedy:
            return None
        places = context.root_positions[:, None]
        uniforms = context.uniforms.draw(places, Purpose.DRAFT, num_draft_tokens)[:, 0]
        return cls(context.sampling, uniforms)


def check_length(method: str, num_draft_tokens: int) -> int:
    """`num_draft_tokens`, the length of a draft.

    Raises:
        UserError: it is below 1.
    """
    if num_draft_tokens < 1:
        raise UserError(f"{method}: num_draft_tokens={num_draft_tokens} must be at least 1")
    return num_draft_tokens


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
    num_rows: int,
    num_draft_tokens: int,
    *,
    device: torch.device,
    draws: Draws | None = None,
    stop_confidence: float = 0.0,
) -> Chain:
    """Draft up to `num_draft_tokens` for each of `num_rows` rows, all rows together.

    Args:
        next_logits: given the tokens drafted last [B] (None at first), the logits [B, D] of what
            follows.
        device: of the tokens.
        draws: draw tokens; None takes the best ones.
        stop_confidence: a row's branch ends where its probability, the best next token included,
            is less than this; 0 never stops.
    """
    counts = torch.zeros(num_rows, dtype=torch.long, device=device)
    path = torch.zeros(num_rows, device=device)  # log-probability of each row's branch
    tokens: list[Tensor] = []
    distributions: list[Tensor] = []
    for step in range(num_draft_tokens):
        logits = next_logits(tokens[-1] if tokens else None)
        going = counts == step
        if stop_confidence > 0:
            log_probs = torch.log_softmax(logits.float(), dim=-1)
            going &= path + log_probs.amax(-1) >= math.log(stop_confidence)
            if not bool(going.any()):
                break
        if draws is None:
            tokens.append(logits.argmax(-1))
        else:
            distributions.append(draws.sampling.probs(logits))
            tokens.append(draw(distributions[-1], draws.uniforms[:, step]))
        if stop_confidence > 0:
            path = path + log_probs.gather(1, tokens[-1][:, None])[:, 0]
        counts = counts + going
    return Chain(
        tokens=torch.stack(tokens, dim=1) if tokens else counts[:, None][:, :0],
        counts=counts,
        distributions=torch.stack(distributions, dim=1) if distributions else None,
    )
