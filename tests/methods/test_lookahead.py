"""Lookahead: window and guesses see what they should, and the pool learns the right n-grams."""

import pytest
import torch

from eagle_lab.engine.loop import decode
from eagle_lab.errors import UserError
from eagle_lab.methods.lookahead import Lookahead, NgramPool, window_tree
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random
from tests.engine.paths import paths_of, prefixes

PROMPTS = [[40, 41, 42], [60, 61, 62, 63, 60, 61, 62, 63], [7], [20, 21, 20, 21, 20]]


def trajectory(window, row, column):
    """Tokens from the root to a node of `window` (rows of lists): along row 0, then down."""
    return window[0][: column + 1] + [window[level][column] for level in range(1, row + 1)]


class Recorded(Lookahead):
    """Keeps what one row proposed, and what the target said, cycle by cycle."""

    def begin(self, context, features):
        super().begin(context, features)
        self.cycles = []

    def propose(self, context):
        (text,), (pool,) = context.tokens, self.pools
        self.proposed = super().propose(context)
        self.text, self.guesses = list(text), pool.continuations(text[-1])
        return self.proposed

    def observe(self, context, acceptance, scores):
        window = self.window[0].tolist()
        self.cycles.append((self.text, self.proposed, self.guesses, window, scores.logits[0]))
        super().observe(context, acceptance, scores)


class Planted(Recorded):
    """Has two guesses with a common beginning for every root."""

    def propose(self, context):
        for guess in ([15, 16, 17], [15, 18, 19]):
            self.pools[0].add([context.tokens[0][-1], *guess])
        return super().propose(context)


def logits_after(target, tokens):
    """What a plain forward over `tokens`, by itself, says after the last one."""
    return target.prefill([tokens], target.new_cache(1)).logits[0, 0]


def test_the_window_of_the_header_as_a_tree():
    window = torch.tensor([[[9, 1, 2], [3, 4, 5], [6, 7, 8]]])
    tree = window_tree(window)
    assert tree.tokens.tolist() == [[9, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert tree.parents.tolist() == [[0, 0, 1, 0, 1, 2, 3, 4, 5]]
    assert tree.depths.tolist() == [[0, 1, 2, 1, 2, 3, 2, 3, 4]]
    assert tree.ancestors[0, 7].int().tolist() == [1, 1, 0, 0, 1, 0, 0, 1, 0]
    assert tree.num_nodes().tolist() == [0]
    assert tree.max_depth == 0


@pytest.mark.parametrize("architecture", [*ARCHITECTURES])
def test_every_trajectory_and_every_guess_scores_as_it_does_alone(architecture):
    """Each node of window and guesses against a forward over the text and its own path only."""
    target = Target(*tiny_random(architecture))
    width, size = 4, 4
    proposer = Planted(window_size=width, ngram_size=size, num_guesses=3)
    decode(target, proposer, [PROMPTS[1]], max_new_tokens=6)
    for text, tree, guesses, window, logits in proposer.cycles:
        scores = {}  # path from the root on -> logits after it
        for level in range(size - 1):
            for column in range(width):
                path = tuple(trajectory(window, level, column))
                scores[path] = logits[level * width + column]
        guessed = paths_of(tree)
        assert set(guessed) == prefixes(*guesses)
        assert prefixes([15, 16, 17], [15, 18, 19]) <= set(guessed)
        for path, row in zip(guessed, logits[size * width - width :], strict=True):
            scores[text[-1], *path] = row
        for path, found in scores.items():
            expected = logits_after(target, [*text[:-1], *path])
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def reference(target, texts, width, size, capacity):
    """Pools of one row after each cycle, by one forward per trajectory and plain lists.

    `texts` are the row's tokens at the beginning of each cycle. A pool is a list of n-grams, the
    latest last.
    """
    first = texts[0]
    window = [
        [first[(level + column) % len(first)] for column in range(width)]
        for level in range(size - 1)
    ]
    pool, pools = [], []
    for text in texts:
        window[0][0] = text[-1]
        pools.append(list(pool))
        found = [
            int(logits_after(target, text[:-1] + trajectory(window, size - 2, column)).argmax())
            for column in range(width)
        ]
        for column in range(width):
            ngram = (*(window[level][column] for level in range(size - 1)), found[column])
            pool = [entry for entry in pool if entry != ngram] + [ngram]
            same = [entry for entry in pool if entry[0] == ngram[0]]
            if len(same) > capacity:
                pool.remove(same[0])
        window = [*window[1:], found]
    return pools


@pytest.mark.parametrize(
    ("width", "size", "capacity"), [(4, 3, 2), (3, 4, 1), (5, 2, 3), (1, 3, 2)]
)
def test_the_pool_holds_the_ngrams_of_separate_jacobi_iterations(width, size, capacity):
    target = Target(*tiny_random("llama"))
    proposer = Recorded(window_size=width, ngram_size=size, num_guesses=capacity)
    decode(target, proposer, [PROMPTS[1]], max_new_tokens=12)
    texts = [text for text, *_ in proposer.cycles]
    assert len(texts) > 3
    pools = reference(target, texts, width, size, capacity)
    for pool, (text, _, guesses, *_) in zip(pools, proposer.cycles, strict=True):
        assert guesses == [entry[1:] for entry in reversed(pool) if entry[0] == text[-1]]


def test_the_pool_keeps_the_latest_of_each_first_token():
    pool = NgramPool(2)
    for ngram in ([1, 2, 3], [1, 4, 5], [1, 2, 3], [1, 6, 7], [9, 2, 3]):
        pool.add(ngram)
    assert pool.continuations(1) == [(6, 7), (2, 3)]
    assert pool.continuations(9) == [(2, 3)]
    assert pool.continuations(5) == []


def test_looping_text_is_guessed():
    """A target that loops is caught by the pool: more tokens than cycles."""
    target = Target(*tiny_random("llama"))
    rows = decode(target, Lookahead(), PROMPTS, max_new_tokens=60)
    assert sum(sum(row.accepted_lengths) for row in rows) > 0
    for row in rows:
        assert row.num_drafted <= len(row.accepted_lengths) * 7 * 4  # window nodes are not counted


@pytest.mark.parametrize("changes", [{"window_size": 0}, {"ngram_size": 1}, {"num_guesses": 0}])
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(UserError, match="lookahead: "):
        Lookahead(**changes)
