"""Suffix: how long copies are, where they come from, and what rows of a batch do not share."""

import pytest
import torch

from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.errors import UserError
from eagle_lab.methods.suffix import Suffix, SuffixAutomaton, SuffixCopier
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random


def context_of(*rows):
    roots = torch.tensor([row[-1] for row in rows])
    uniforms = Uniforms(list(range(len(rows))))
    return Context(
        [list(row) for row in rows], roots, TreeCache(1, len(rows)), Sampling(), uniforms
    )


def copies_of(*rows, n_min=1, num_draft_tokens=16, tokens_per_match=2.0):
    copier = SuffixCopier(n_min, num_draft_tokens, tokens_per_match, earlier_answers=False)
    context = context_of(*rows)
    copier.begin(context)
    return [copy.tokens for copy in copier.copies(context)]


def test_the_draft_grows_with_the_match():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert copies_of([*text, 50, 3]) == [[4, 5]]
    assert copies_of([*text, 50, 2, 3]) == [[4, 5, 6, 7]]
    assert copies_of([*text, 50, 2, 3], tokens_per_match=1.0) == [[4, 5]]
    assert copies_of([*text, 50, 2, 3], num_draft_tokens=3) == [[4, 5, 6]]
    assert copies_of([*text, 50, 3], n_min=2) == [[]]
    assert copies_of([*text, 50]) == [[]]


def test_a_loop_goes_on_looping():
    assert copies_of([5, 6, 7, 5, 6, 7, 5, 6, 7], num_draft_tokens=8) == [[5, 6, 7, 5, 6, 7, 5, 6]]
    assert copies_of([4, 4, 4, 4]) == [[4] * 6]


def test_prompts_are_read_before_the_first_draft(monkeypatch: pytest.MonkeyPatch):
    """Their time belongs to the prefill, as every method's."""
    copier, context = SuffixCopier(1, 16, 1.0, earlier_answers=False), context_of([1, 2, 1], [3])
    read = []
    append = SuffixAutomaton.append
    monkeypatch.setattr(
        SuffixAutomaton, "append", lambda self, token: (read.append(token), append(self, token))
    )
    copier.begin(context)
    assert read == [1, 2, 1, 3]
    copier.copies(context)
    assert len(read) == 4
    context.append([[7], [8]], torch.tensor([7, 8]))
    copier.copies(context)
    assert read[4:] == [7, 8]


def test_rows_go_on_in_any_order():
    copier = SuffixCopier(1, 16, 1.0, earlier_answers=False)
    context = context_of([1, 2, 3, 1], [4, 5, 6, 4], [7, 8, 9, 7])
    copier.begin(context)
    assert [copy.tokens for copy in copier.copies(context)] == [[2], [5], [8]]
    context.select([2, 0])
    copier.select([2, 0])
    context.append([[8], [2]], torch.tensor([8, 2]))
    assert [copy.tokens for copy in copier.copies(context)] == [[9, 7], [3, 1]]


def test_answers_of_earlier_batches_are_copied_from_without_their_prompts():
    copier = SuffixCopier(1, 16, 2.0, earlier_answers=True)
    first = context_of([1, 2, 3], [40, 41, 42])
    copier.begin(first)
    first.append([[4, 5], [43, 44]], torch.tensor([5, 44]))
    copier.copies(first)
    copier.select([1])  # row 0 finished; row 1 of the same batch learns nothing of it
    first.select([1])
    first.append([[45]], torch.tensor([45]))
    assert [copy.tokens for copy in copier.copies(first)] == [[]]
    copier.select([])

    second = context_of([2], [3], [43])
    copier.begin(second)
    # [3, 4, 5] and [42, 43, 44, 45] are answers; 2 stood in a prompt; a copy ends with its answer.
    assert [copy.tokens for copy in copier.copies(second)] == [[], [4, 5], [44, 45]]


def test_asked_again_with_earlier_answers_almost_everything_is_copied():
    target = Target(*tiny_random("llama"))
    prompts = [[40, 41, 42], [20, 21, 20, 21, 20]]
    proposer = Suffix(earlier_answers=True)
    first = decode(target, proposer, prompts, max_new_tokens=60)
    again = decode(target, proposer, prompts, max_new_tokens=60)
    forgetful = decode(target, Suffix(), prompts, max_new_tokens=60)
    assert [row.tokens for row in first] == [row.tokens for row in again]
    assert [row.accepted_lengths for row in first] == [row.accepted_lengths for row in forgetful]
    for row, before in zip(again, first, strict=True):
        assert len(row.accepted_lengths) < len(before.accepted_lengths)


@pytest.mark.parametrize(
    "changes", [{"n_min": 0}, {"num_draft_tokens": 0}, {"n_min": 2, "tokens_per_match": 0.4}]
)
def test_settings_that_could_never_copy_are_refused(changes):
    with pytest.raises(UserError, match="must be at least 1"):
        Suffix(**changes)
