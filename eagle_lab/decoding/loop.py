"""The loop that serves every method: propose, score, verify, keep, observe.

It knows no method: what a method is lies in its proposer, and what text comes out follows from
the target and the sampling law alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eagle_lab.decoding.clock import Laps
from eagle_lab.decoding.generation import Generation, Record
from eagle_lab.decoding.outcome import Outcome
from eagle_lab.decoding.proposer import Context, Proposer
from eagle_lab.errors import UserError
from eagle_lab.models.target import Scores, Target
from eagle_lab.sampling import Coins, Sampling, row_key
from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.verify import Acceptance, VerifyCoins, verify


@torch.no_grad()
def decode(
    target: Target,
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
        target: the model whose law the text follows.
        proposer: the method.
        prompts: token ids, one list per row.
        sampling: the law, greedy by default.
        max_new_tokens: exactly this many tokens unless an end-of-sequence id comes first.
        row_keys: a key per row for its coins, made by `sampling.row_key`; by default from the
            row's index.
        on_tokens: called with (row, new tokens) as they arrive.
        keep_features: also return the target's features.
        keep_confidences: also return how confident the drafter was of what the target judged.

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
        coins=Coins(row_keys, target.device),
    )

    # The first token is the target's own: an empty tree on the last prompt token.
    scores = target.prefill(prompts, context.cache)
    first = DraftTree.root_only(context.roots)
    coins = _toss(context, first)
    acceptance = verify(first, scores.logits, context.sampling, coins)
    record.keep_prompt_features(scores.features)
    new_tokens = Outcome.fetch(first, acceptance).new_tokens
    context.append(new_tokens, acceptance.own_token)
    acceptance, scores, _ = _emit(context, record, acceptance, scores, new_tokens, None)
    if record.rows:
        proposer.begin(context, scores.features)
    laps.end()

    cycles: list[list[int]] = []  # rows that took part in each
    while record.rows:
        rows = record.rows
        cycles.append(rows)
        tree = proposer.propose(context)
        laps.end()
        scores = target.score(tree, context.cache)
        laps.end()

        coins = _toss(context, tree)
        acceptance = verify(tree, scores.logits, context.sampling, coins)
        outcome = Outcome.fetch(tree, acceptance)
        new_tokens = outcome.new_tokens
        context.append(new_tokens, acceptance.own_token)
        context.cache.keep(
            acceptance.path,
            acceptance.num_accepted + 1,
            moved=outcome.moved,
            max_length=max(map(len, context.tokens)) - 1,  # the roots are not in it yet
        )
        record.keep_features(scores.features, acceptance.path, new_tokens)
        record.keep_confidences(tree, acceptance, new_tokens)
        acceptance, scores, going_on = _emit(
            context, record, acceptance, scores, new_tokens, outcome.num_nodes
        )
        if len(going_on) < len(rows):
            proposer.select(going_on)
        laps.end()

        if record.rows:
            proposer.observe(context, acceptance, scores)
        laps.end()

    prefill_s, *seconds = laps.seconds()
    by_cycle = zip(*[iter(seconds)] * 4, strict=True)
    for rows, (propose_s, verify_s, rest_s, observe_s) in zip(cycles, by_cycle, strict=True):
        record.time_cycle(rows, propose_s + observe_s, verify_s, rest_s)
    return record.finish(prefill_s)


def _toss(context: Context, tree: DraftTree) -> VerifyCoins | None:
    """The coins that `verify` needs: none for greedy decoding."""
    if context.sampling.greedy:
        return None
    return VerifyCoins.toss(context.coins, tree, context.root_positions)


def _emit(
    context: Context,
    record: Record,
    acceptance: Acceptance,
    scores: Scores,
    new_tokens: list[list[int]],
    num_nodes: list[int] | None,
) -> tuple[Acceptance, Scores, list[int]]:
    """Hand out the new tokens and drop the rows that finished.

    Returns what the rows that go on have been given, and their places among the rows so far.
    """
    num_rows = len(record.rows)
    going_on = record.emit(new_tokens, num_nodes)
    if len(going_on) < num_rows:
        index = torch.tensor(going_on, dtype=torch.long, device=context.roots.device)
        context.select(going_on)
        acceptance, scores = acceptance.select(index), scores.select(index)
    return acceptance, scores, going_on


def check_fits(
    target: Target, max_nodes: int, prompts: Sequence[Sequence[int]], max_new_tokens: int
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
