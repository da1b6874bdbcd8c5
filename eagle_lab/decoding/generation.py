"""What a row of a batch produced."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Generation:
    """One row's output.

    Attributes:
        prompt_tokens: the prompt.
        tokens: emitted tokens; the first comes from the prefill, an end-of-sequence id is the
            last one if there is any.
        accepted_lengths: drafted tokens accepted and emitted, per cycle.
        judged_lengths: drafted tokens on the text's way that the target judged, per cycle: the
            accepted ones, and one more where both draft and text went on behind them.
        emitted_lengths: tokens emitted per cycle, the target's own included; their mean is tau.
        num_drafted: drafted nodes verified, summed over the cycles.
        prefill_s: seconds of the batch's prefill, the proposer's own and the first token included.
        decode_s: seconds from there until this row ended.
        cycle_s: seconds of each cycle of this row.
        draft_s: seconds of drafting (proposing and observing), summed over its cycles.
        verify_s: seconds of target passes, summed over its cycles.
        finished_by: "eos" or "length".
        features: [T, F] target features of all tokens but the last, if they were asked for.
        draft_confidences: if they were asked for, the drafter's probability of each drafted token
            that the target judged, behind its parent: tokens whose parent was accepted and whose
            place the text reached, cycle by cycle.
        draft_accepted: 1 for each of them that was accepted, 0 for the others.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    judged_lengths: list[int] = field(default_factory=list)
    emitted_lengths: list[int] = field(default_factory=list)
    num_drafted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cycle_s: list[float] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    finished_by: str = ""
    features: Tensor | None = None
    draft_confidences: list[float] = field(default_factory=list)
    draft_accepted: list[int] = field(default_factory=list)
