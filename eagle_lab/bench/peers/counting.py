"""Another engine's passes, counted by the rules that hold for our own.

A first token belongs to the prefill and to no cycle; output is cut at the first end-of-sequence id
and at the token limit; a cycle is one pass of the target. Assisted generation of transformers
drafts before its prefill: what that pass emits after the first token is a cycle of its own, which
took no further time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle_lab.engine.record import CycleTime, Generation, Outcome, Record


@dataclass(frozen=True)
class Pass:
    """One pass of the target.

    Attributes:
        tokens: what it emitted in each row of the batch, rows that have ended included.
        seconds: since the pass before.
        num_drafted: drafted tokens that it verified in each row.
    """

    tokens: list[list[int]]
    seconds: float
    num_drafted: int = 0


def generations_of(
    prompts: Sequence[Sequence[int]],
    passes: Sequence[Pass],
    *,
    max_new_tokens: int,
    eos_ids: frozenset[int],
) -> list[Generation]:
    """The rows of a batch from `passes`, the prefill first; how a cycle's time splits is NaN."""
    record = Record(prompts, max_new_tokens, eos_ids, on_tokens=None, keep_features=False)
    prefill, *cycles = passes
    record.emit_first([row[:1] for row in prefill.tokens])
    if any(len(row) > 1 for row in prefill.tokens):  # it verified a draft, too
        rest = [row[1:] for row in prefill.tokens]
        cycles = [Pass(rest, 0.0, prefill.num_drafted - 1), *cycles]
    for cycle in cycles:
        new_tokens = [cycle.tokens[row] for row in record.rows]
        num_nodes = [cycle.num_drafted] * len(new_tokens)
        num_judged = [min(len(tokens), cycle.num_drafted) for tokens in new_tokens]
        record.emit(Outcome(new_tokens, num_nodes, num_judged, moved=False))
    times = [CycleTime(0.0, 0.0, cycle.seconds) for cycle in cycles]
    generations = record.finish(prefill.seconds, times)
    for generation in generations:
        generation.draft_s = generation.verify_s = math.nan
    return generations
