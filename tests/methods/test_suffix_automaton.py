"""The suffix automaton against a search through all substrings."""

import random

import pytest

from eagle_lab.methods.suffix import Cursor, SuffixAutomaton


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


@pytest.mark.parametrize("num_symbols", [2, 3, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_cursor_matches_another_text_like_a_brute_force_search(seed, num_symbols):
    draw = random.Random(seed)
    text = random_text(draw, 60, num_symbols)
    other = random_text(draw, 60, num_symbols + 1)
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    cursor = Cursor(automaton)
    for place, token in enumerate(other):
        cursor.append(token)
        read = other[: place + 1]
        match = cursor.longest_match()
        assert match.length == longest_suffix_in(read, text)
        if match.length:
            assert match.end in ends_of(text, read[-match.length :])


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
