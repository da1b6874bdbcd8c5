"""The proposer: what drafts, one batch of trees per cycle, and the rows' state that it sees.

The loop calls, in this order,

    begin(context, features)                  once, after the prefill
    propose(context) -> DraftTree             every cycle
    select(rows)                              whenever rows finish
    observe(context, acceptance, scores)      after every cycle, for the rows that remain

A proposer never sees a row that has finished: output is cut before anything observes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.record import Outcome
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.engine.verify import Acceptance, VerifyUniforms

if TYPE_CHECKING:
    from eagle_lab.targets.cache import TreeCache


@dataclass
class Context:
    """All per-row state of the rows under way (B of them).

    Attributes:
        tokens: prompt and emitted tokens of each row; the last one is the root.
        roots: [B] the last emitted tokens, not yet in the cache.
        cache: the target's cache; `cache.lengths` [B] are the roots' positions.
        sampling: the distribution.
        uniforms: the rows' uniforms.
    """

    tokens: list[list[int]]
    roots: Tensor
    cache: TreeCache
    sampling: Sampling
    uniforms: Uniforms

    @property
    def root_positions(self) -> Tensor:
        """[B] places of the roots in their rows, on the host."""
        return torch.tensor([len(row) - 1 for row in self.tokens])

    def append(self, new_tokens: list[list[int]], roots: Tensor) -> None:
        """Add a cycle's tokens; `roots` [B] are their last ones."""
        for row, tokens in zip(self.tokens, new_tokens, strict=True):
            row.extend(tokens)
        self.roots = roots

    def verify_uniforms(self, tree: DraftTree) -> VerifyUniforms | None:
        """The uniforms that verifying `tree` needs: none for greedy decoding."""
        if self.sampling.greedy:
            return None
        return VerifyUniforms.draw(self.uniforms, tree, self.root_positions)

    def keep(self, acceptance: Acceptance, outcome: Outcome) -> None:
        """Commit a cycle: its tokens, and in the cache the old roots and the accepted nodes."""
        self.append(outcome.new_tokens, acceptance.bonus_token)
        self.cache.keep(
            acceptance.path,
            acceptance.num_accepted + 1,
            moved=outcome.moved,
            max_length=max(map(len, self.tokens)) - 1,  # the new roots are not in it yet
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.roots.device)
        self.tokens = [self.tokens[row] for row in rows]
        self.roots = self.roots[index]
        self.cache.select(rows)
        self.uniforms = self.uniforms.select(rows)


class Proposer(ABC):
    """Drafts trees for a batch of rows; the base of every method.

    A new one sets `max_nodes` and writes `propose`. It overrides the other calls where it has state
    to keep, and sets an attribute below where its default does not hold.

    Attributes:
        max_nodes: most nodes a tree of this proposer has, the root not counted.
        sizes: depth, width and num_nodes of its trees as a bench shows them, where these are not
            its settings of the same names.
        context_length: most tokens of a text that the drafting model reads, a draft included; None
            where only the target's context counts.
        lossless: whether the text must follow the target's distribution, at temperature 0 equal
            vanilla's token for token; a bench then demands it.
        draws_children: whether children are drawn at T > 0, so that judging them needs the
            target's whole distribution; a replay of answers has none.
        reads_all_scores: whether `observe` reads scores of nodes that were not accepted; a replay
            has none.
    """

    max_nodes: int
    sizes: Mapping[str, int | None] | None = None
    context_length: int | None = None
    lossless: bool = True
    draws_children: bool = False
    reads_all_scores: bool = False

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Take the prompts: `features` [B, T, F], row b holding its prompt's positions first."""

    @abstractmethod
    def propose(self, context: Context) -> DraftTree:
        """Draft one tree per row, on the roots of `context`."""

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Learn what was kept; `context` already ends with the new tokens."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the state of the chosen rows."""

    def model_calls(self) -> Sequence[tuple[object, str]]:
        """Objects and the names of their methods in which a model drafts; a profile times them."""
        return ()
