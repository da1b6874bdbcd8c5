"""EAGLE's core step: whatever was accepted, the drafter then knows the text by its true features.

Lossless decoding cannot see a drafter that is fed wrong features, so each cycle's states and drafts
are compared with plain causal passes of the drafter over the whole text.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.verify import Acceptance
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.drafters.fakes import causal_attend, eagle1
from tests.engine.paths import paths_of

PROMPTS = [[40, 41, 42], [60, 61, 62, 63] * 3, [7], list(range(100, 125))]
NUM_TOKENS = 12


class Watched(EagleDynamic):
    """Keeps what each draft came from, and has more of it accepted than the drafter deserves.

    Args:
        texts: the prompts with the target's answers after them.

    Attributes:
        drafts: of each row in each cycle its tokens, the state after its root, and its tree as
            {path of tokens: log-probability}.
        num_accepted: of the rows in each cycle.
        num_moved: cycles of rows that kept another node than the first branch's.
    """

    def __init__(self, texts: list[list[int]], *arguments: Any, **sizes: int):
        super().__init__(*arguments, **sizes)
        self.texts = texts
        self.drafts: list[tuple[list[int], Tensor, dict[tuple[int, ...], float]]] = []
        self.num_accepted: list[list[int]] = []
        self.num_moved = 0

    def propose(self, context: Context) -> DraftTree:
        tree = super().propose(context)
        assert tree.scores is not None
        for row, tokens in enumerate(context.tokens):
            scores = dict(zip(paths_of(tree, row), tree.scores[row, 1:].tolist(), strict=True))
            self.drafts.append((list(tokens), self.root_hidden[row, 0], scores))
            self._make_right(tree, row, tokens, (len(self.num_accepted) + row) % (self.depth + 1))
        return tree

    def _make_right(self, tree: DraftTree, row: int, tokens: list[int], depth: int) -> None:
        """Write the target's next tokens along the last branch of at most `depth` nodes."""
        depths = tree.depths[row].tolist()
        node = max((d, column) for column, d in enumerate(depths) if d <= depth)[1]
        path: list[int] = []
        while node:
            path.insert(0, node)
            node = int(tree.parents[row, node])
        coming = beginning_with(tokens, self.texts)[len(tokens) :]
        for node, token in zip(path, coming, strict=False):
            siblings = (tree.parents[row] == tree.parents[row, node]) & tree.candidates[row]
            equal = siblings & (tree.tokens[row] == token)
            tree.tokens[row, equal] = int(tree.tokens[row, node])  # siblings stay distinct
            tree.tokens[row, node] = token

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        super().observe(context, acceptance, scores)
        self.num_accepted.append(acceptance.num_accepted.tolist())
        steps = torch.arange(acceptance.path.shape[1])
        kept = steps <= acceptance.num_accepted[:, None]
        self.num_moved += int(((acceptance.path != steps) & kept).any(1).sum())


def beginning_with(tokens: list[int], texts: list[list[int]]) -> list[int]:
    return next(text for text in texts if text[: len(tokens)] == tokens)


def drafter_of(target: Target) -> Eagle1:
    """A random drafter in which everything matters: norms, and attention to all of the text."""
    drafter = eagle1(target, inner_norm=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return drafter.requires_grad_(False)


def plain_states(drafter: Eagle1, tokens: list[int], features: Tensor) -> Tensor:
    """States [N, H] of one causal pass over the pairs of `features` [N, H] and `tokens` [N]."""
    positions = torch.arange(len(tokens))[None]
    return drafter(torch.tensor(tokens)[None], features[None], positions, causal_attend)[0]


def plain_score(drafter: Eagle1, tokens: list[int], features: Tensor, path: tuple[int, ...]):
    """Log-probability of `path` after a text, by a pass over everything for each of its tokens."""
    score = 0.0
    for token in path:
        state = plain_states(drafter, tokens, features)[-1:]
        score += float(torch.log_softmax(drafter.logits(state[0]), dim=-1)[token])
        tokens, features = [*tokens, token], torch.cat([features, state])
    return score


@pytest.mark.parametrize("fast_layers", [False, True])
def test_after_every_cycle_the_drafter_stands_where_a_plain_pass_over_the_text_does(fast_layers):
    target = Target(*tiny_random("llama"), fast_layers=fast_layers)
    answers = decode(target, Vanilla(), PROMPTS, max_new_tokens=NUM_TOKENS, keep_features=True)
    texts = [row.prompt_tokens + row.tokens for row in answers]
    sizes = {"depth": 3, "width": 3, "num_nodes": 9}
    watched = Watched(texts, target, drafter_of(target), **sizes)
    rows = decode(target, watched, PROMPTS, max_new_tokens=NUM_TOKENS)
    assert [row.tokens for row in rows] == [row.tokens for row in answers]

    other = Target(*tiny_random("llama"), fast_layers=False)
    drafter = drafter_of(other)
    for tokens, root_hidden, scores in watched.drafts:
        features = other.prefill([tokens[:-1]], other.new_cache(1)).features["top"][0]
        expected = plain_states(drafter, tokens[1:], features)[-1]
        torch.testing.assert_close(root_hidden, expected, atol=1e-4, rtol=1e-4)
        for path, score in scores.items():
            plain = plain_score(drafter, tokens[1:], features, path)
            assert score == pytest.approx(plain, abs=1e-3)

    assert watched.num_moved > 4
    assert any(len(set(counts)) > 2 for counts in watched.num_accepted)  # ragged
    assert {count for counts in watched.num_accepted for count in counts} == {0, 1, 2, 3}
