"""Drafting one branch, token after token, with whatever says what may come next.

Greedy decoding takes the best token at each step. At T > 0 tokens are drawn from the drafter's
own distribution q, which `verify` needs to accept them with min(1, p/q); or the best token is
taken there, too, a point-mass proposal. Where a branch ends may depend on the tokens drawn so far,
never on the one drawn next, which keeps it lossless.

Shapes: B rows, G drafted tokens, D tokens that can be drafted.

How many tokens to draft for each row: always as many as allowed, or what lately paid.

Adaptive lengths follow the `heuristic` schedule of assisted generation in transformers: two more
after a draft that was accepted whole, one less after any other, here within 1 ... most. A length
depends on the row's own past alone, never on what is drawn next or on its neighbours, so sampled
text keeps the target's distribution and no row's text changes with its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Purpose, Sampling, draw
from eagle_lab.errors import UserError

GROWTH, SHRINKAGE = 2, 1


class DraftLength:
    """Draft lengths of a batch of rows.

    Args:
        method: name of the method, for the error.
        most: longest draft, and the first one of every row.
        adaptive: follow what was accepted; otherwise every draft may be `most` long.

    Attributes:
        wanted: tokens to draft for each row, set by `begin`.

    Raises:
        UserError: `most` is below 1.
    """

    def __init__(self, method: str, most: int, *, adaptive: bool):
        if most < 1:
            raise UserError(f"{method}: num_draft_tokens={most} must be at least 1")
        self.most, self.adaptive = most, adaptive
        self.wanted: list[int] = []
        self._drafted: list[int] = []

    def begin(self, num_rows: int) -> None:
        """Start afresh with `num_rows` rows."""
        self.wanted = [self.most] * num_rows
        self._drafted = []

    def drafted(self, counts: Tensor | Sequence[int]) -> None:
        """Note how many tokens each row's draft really has; fewer than wanted is no failure."""
        if self.adaptive:
            self._drafted = counts.tolist() if isinstance(counts, Tensor) else list(counts)

    def observe(self, num_accepted: Tensor) -> None:
        """Adapt to `num_accepted` [B] of the last draft; an empty draft teaches nothing."""
        if not self.adaptive:
            return
        pairs = zip(self._drafted, num_accepted.tolist(), strict=True)
        for row, (drafted, accepted) in enumerate(pairs):
            if drafted:
                change = GROWTH if accepted == drafted else -SHRINKAGE
                self.wanted[row] = min(max(self.wanted[row] + change, 1), self.most)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.wanted = [self.wanted[row] for row in rows]
        if self.adaptive:
            self._drafted = [self._drafted[row] for row in rows]


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
    distributions: list[Tensor] = []
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
            distributions.append(draws.sampling.probs(logits))
            tokens.append(draw(distributions[-1], draws.uniforms[:, step]))
        if stop_confidence > 0:
            path = path + log_probs.gather(1, tokens[-1][:, None])[:, 0]
        counts = counts + going
    return Chain(
        tokens=torch.stack(tokens, dim=1) if tokens else most[:, None][:, :0],
        counts=counts,
        distributions=torch.stack(distributions, dim=1) if distributions else None,
    )
