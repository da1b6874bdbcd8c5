"""Suffix: how long copies are, and its automaton against a search through all substrings."""

import random

import pytest
import torch

from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.errors import UserError
from eagle_lab.methods.suffix import Suffix, SuffixAutomaton, SuffixCopier
from eagle_lab.targets.cache import TreeCache


def context_of(*rows):
    roots = torch.tensor([row[-1] for row in rows])
    uniforms = Uniforms(list(range(len(rows))))
    return Context(
        [list(row) for row in rows], roots, TreeCache(1, len(rows)), Sampling(), uniforms
    )


def copies_of(*rows, n_min=1, num_draft_tokens=16, tokens_per_match=2.0):
    copier = SuffixCopier(n_min, num_draft_tokens, tokens_per_match)
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
    copier, context = SuffixCopier(1, 16, 1.0), context_of([1, 2, 1], [3])
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
    copier = SuffixCopier(1, 16, 1.0)
    context = context_of([1, 2, 3, 1], [4, 5, 6, 4], [7, 8, 9, 7])
    copier.begin(context)
    assert [copy.tokens for copy in copier.copies(context)] == [[2], [5], [8]]
    context.select([2, 0])
    copier.select([2, 0])
    context.append([[8], [2]], torch.tensor([8, 2]))
    assert [copy.tokens for copy in copier.copies(context)] == [[9, 7], [3, 1]]


@pytest.mark.parametrize(
    "changes", [{"n_min": 0}, {"num_draft_tokens": 0}, {"n_min": 2, "tokens_per_match": 0.4}]
)
def test_settings_that_could_never_copy_are_refused(changes):
    with pytest.raises(UserError, match="n_min=.*num_draft_tokens="):
        Suffix(**changes)


def ends_of(text, pattern):
    """Places where an occurrence of `pattern` in `text` ends."""
    length = len(pattern)
    return [
        end for end in range(length - 1, len(text)) if text[end - length + 1 : end + 1] == pattern
    ]


def longest_suffix_in(suffixes_of, text):
    """Length of the longest suffix of `suffixes_of` that occurs in `text`."""
    return next(
        (
            length
            for length in range(len(suffixes_of), 0, -1)
            if ends_of(text, suffixes_of[-length:])
        ),
        0,
    )


def random_text(draw, num_tokens, num_symbols):
    """Random symbols, with stretches copied from before."""
    text = []
    while len(text) < num_tokens:
        if text and draw.random() < 0.3:
            start = draw.randrange(len(text))
            text += text[start : start + draw.randrange(1, 12)]
        else:
            text.append(draw.randrange(num_symbols))
    return text[:num_tokens]


@pytest.mark.parametrize("num_symbols", [1, 2, 3, 20])
@pytest.mark.parametrize("seed", range(5))
def test_the_longest_repeat_equals_a_brute_force_search_at_every_token(seed, num_symbols):
    text = random_text(random.Random(seed), 90, num_symbols)
    automaton = SuffixAutomaton()
    for place, token in enumerate(text):
        automaton.append(token)
        seen = text[: place + 1]
        match = automaton.longest_repeat()
        assert match.length == longest_suffix_in(seen[1:], seen[:-1])
        if match.length:
            assert match.end in ends_of(seen[:-1], seen[-match.length :])


def test_of_several_places_the_latest_repeat_is_copied_from():
    automaton = SuffixAutomaton()
    for token in [1, 2, 7, 1, 2, 8, 1, 2]:
        automaton.append(token)
    match = automaton.longest_repeat()
    assert (match.length, match.end) == (2, 4)


@pytest.mark.parametrize("kind", ["random", "looping", "Fibonacci"])
def test_states_and_steps_are_linear_in_the_text(kind):
    """At most 2 states and 3 transitions per token, the bounds of Blumer et al.; the lookups made
    to add a token are counted, and their mean does not grow with the text."""

    class Counting(dict):
        lookups = 0

        def __contains__(self, key):
            Counting.lookups += 1
            return super().__contains__(key)

        def get(self, key, default=None):
            Counting.lookups += 1
            return super().get(key, default)

    class Counted(SuffixAutomaton):
        def _add_state(self, following, link, length, end):
            return super()._add_state(Counting(following), link, length, end)

    num_tokens = 4000
    if kind == "random":
        text = random_text(random.Random(0), num_tokens, 4)
    elif kind == "looping":
        text = [1, 2, 3, 4, 5] * (num_tokens // 5)
    else:
        before, text = [0], [0, 1]
        while len(text) < num_tokens:
            before, text = text, text + before
    Counting.lookups = 0
    automaton = Counted()
    for token in text:
        automaton.append(token)
    assert len(automaton._next) <= 2 * len(text)
    assert sum(map(len, automaton._next)) <= 3 * len(text)
    assert Counting.lookups <= 6 * len(text)
