"""The loop that serves every method: propose, score, verify, keep, observe.

    rows = decode(target, proposer, prompts, sampling=Sampling(temperature=1.0))

It knows no method, which is all in its proposer; the text that comes out follows from the target
and the sampling distribution alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from eagle_lab.engine.clock import Laps
from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.engine.record import CycleTime, Generation, Outcome, Record
from eagle_lab.engine.sampling import Sampling, Uniforms, row_key
from eagle_lab.engine.verify import verify
from eagle_lab.errors import UserError


class Scorer(Protocol):
    """What judges drafts: a `Target`, or what stands in for one (`bench.replay`).

    Attributes:
        name: for messages.
        device: where its logits are.
        context_length: most tokens of a text, draft trees included.
        eos_ids: ids that end an answer.
    """

    name: str
    device: torch.device
    context_length: int
    eos_ids: frozenset[int]

    def new_cache(self, num_rows: int) -> Any:
        """An empty `TreeCache`, of the kind that this scorer reads."""
        ...

    def prefill(self, prompts: Sequence[Sequence[int]], cache: Any) -> Scores:
        """Read the prompts; see `Target.prefill`."""
        ...

    def score(self, tree: DraftTree, cache: Any) -> Scores:
        """Logits and features at every node; see `Target.score`."""
        ...


@torch.no_grad()
def decode(
    target: Scorer,
    proposer: Proposer,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    row_keys: Sequence[int] | None = None,
    on_tokens: Callable[[int, list[int]], None] | None = None,
    keep_features: bool = False,
    keep_confidences: bool = False,
) -> list[Generation]:
    """Generate for a batch of prompts; returns one `Generation` per prompt, in order.

    Args:
        target: the model whose distribution the text follows.
        proposer: the method.
        prompts: token ids, one list per row.
        sampling: the distribution, greedy by default.
        max_new_tokens: exactly this many tokens unless an end-of-sequence id comes first.
        row_keys: a key per row for its uniforms, made by `sampling.row_key`; by default from the
            row's index.
        on_tokens: called with (row, new tokens) as they arrive.
        keep_features: also return the target's features.
        keep_confidences: also return the drafter's confidence in each token that was judged.

    Raises:
        UserError: for an empty prompt, or one that does not fit the context.
    """
    check_fits(target, proposer.max_nodes, prompts, max_new_tokens)
    if not prompts:
        return []
    if row_keys is None:
        row_keys = [row_key(0, row, 0, 0) for row in range(len(prompts))]
    laps = Laps(target.device)
    record = Record(
        prompts, max_new_tokens, target.eos_ids, on_tokens, keep_features, keep_confidences
    )
    context = Context(
        tokens=[list(prompt) for prompt in prompts],
        roots=torch.zeros(len(prompts), dtype=torch.long, device=target.device),
        cache=target.new_cache(len(prompts)),
        sampling=sampling or Sampling(),
        uniforms=Uniforms(row_keys, target.device),
    )
    _begin(target, proposer, context, record)
    laps.end()
    while record.rows:
        _cycle(target, proposer, context, record, laps)
    return record.finish(*_times(laps))


def _begin(target: Scorer, proposer: Proposer, context: Context, record: Record) -> None:
    """Read the prompts and add the first token: the bonus token of an empty tree."""
    scores = target.prefill(context.tokens, context.cache)
    tree = DraftTree.root_only(context.roots)
    acceptance = verify(tree, scores.logits, context.sampling, context.verify_uniforms(tree))
    outcome = Outcome.fetch(tree, acceptance)
    context.append(outcome.new_tokens, acceptance.bonus_token)
    record.keep_prompt_features(scores.features)

    remaining = record.emit_first(outcome.new_tokens)
    if len(remaining) < len(outcome.new_tokens):
        context.select(remaining)
        scores = scores.select(remaining)
    if record.rows:
        proposer.begin(context, scores.features)


def _cycle(
    target: Scorer, proposer: Proposer, context: Context, record: Record, laps: Laps
) -> None:
    """Propose, score, verify, keep, observe: a draft and a target pass for the rows under way."""
    tree = proposer.propose(context)
    laps.end()
    scores = target.score(tree, context.cache)
    laps.end()

    acceptance = verify(tree, scores.logits, context.sampling, context.verify_uniforms(tree))
    outcome = Outcome.fetch(tree, acceptance)
    context.keep(acceptance, outcome)
    record.keep(tree, scores, acceptance, outcome)

    remaining = record.emit(outcome)
    if len(remaining) < len(outcome.new_tokens):
        context.select(remaining)
        proposer.select(remaining)
        acceptance, scores = acceptance.select(remaining), scores.select(remaining)
    laps.end()
    if record.rows:
        proposer.observe(context, acceptance, scores)
    laps.end()


def _times(laps: Laps) -> tuple[float, list[CycleTime]]:
    """Seconds of the prefill, and those of each cycle from its four laps."""
    prefill_s, *seconds = laps.seconds()
    cycles = zip(*[iter(seconds)] * 4, strict=True)
    return prefill_s, [
        CycleTime(draft_s=propose_s + observe_s, verify_s=score_s, rest_s=verify_s)
        for propose_s, score_s, verify_s, observe_s in cycles
    ]


def check_fits(
    target: Scorer, max_nodes: int, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> None:
    """Raise `UserError` unless every prompt, its answer and a last tree fit the context."""
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens={max_new_tokens} must be at least 1")
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {row} is empty; a prompt needs at least one token")
        needed = len(prompt) + max_new_tokens + max_nodes + 1
        if needed > target.context_length:
            raise UserError(
                f"prompt {row} has {len(prompt)} tokens; with {max_new_tokens} new tokens and "
                f"{max_nodes + 1} tree slots it needs {needed}, but the context of "
                f"{target.name} is {target.context_length}"
            )
