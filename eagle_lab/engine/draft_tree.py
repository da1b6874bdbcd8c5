"""A tree of draft tokens, and what the target says at its columns.

Pure tensors; knows no model, no sampling and no configuration.

    column      0      1      2      3          root ("the", already emitted)
    token      the    cat    dog    sat          |-- cat -- sat
    parent      0      0      0      1           `-- dog
    depth       0      1      1      2

    ancestors  1 0 0 0     a row sees the root, its ancestors and itself; with the committed
               1 1 0 0     prefix in front this is the attention mask of the verify pass
               1 0 1 0
               1 1 0 1

Shapes: B batch rows, N columns (root and nodes), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def ancestors_of(parents: Tensor, valid: Tensor) -> Tensor:
    """Ancestor-or-self matrix [B, N, N] of `parents` [B, N]; padding sees itself only.

    Entry (i, j) says that j lies on the path from the root to i. Reachability along the parent
    links by repeated squaring: ceil(log2(N)) small products, no loop over nodes.
    """
    columns = torch.arange(parents.shape[1], device=parents.device)
    links = (parents[:, :, None] == columns) & valid[:, :, None]
    reached = (links | (columns[:, None] == columns)).float()
    for _ in range((len(columns) - 2).bit_length() if len(columns) > 2 else 0):
        reached = torch.bmm(reached, reached).clamp_(max=1)
    return reached > 0


def _trie(branches: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Tokens and parent columns of the trie of `branches`, the root left out."""
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for branch in branches:
        node = 0
        for token in branch:
            if (node, token) not in children:
                tokens.append(token)
                parents.append(node)
                children[node, token] = len(tokens)
            node = children[node, token]
    return tokens, parents


@dataclass
class DraftTree:
    """Drafted tokens of a batch, one tree per row.

    Attributes:
        tokens: [B, N] token ids; column 0 is the root, the last emitted token.
        parents: [B, N] column of the parent, smaller than the column itself; the root's is 0.
        valid: [B, N] False for padding.
        candidates: [B, N] True for nodes that verification may accept: neither the root, nor
            padding, nor nodes that are in the pass for their scores alone (Lookahead's window).
        depths: [B, N] distance from the root.
        ancestors: [B, N, N] ancestor-or-self, see `ancestors_of`.
        max_depth: upper bound of the candidates' depths, a number of the host.
        draft_probs: [B, N, V] distribution from which the children of each node were drawn without
            replacement, in the order of their columns; None if children were chosen (top-k,
            copies), which makes each proposal a point mass.
        scores: [B, N] the drafter's log-probability of the path to each node, 0 at the root; None
            where a proposer has none.
    """

    tokens: Tensor
    parents: Tensor
    valid: Tensor
    candidates: Tensor
    depths: Tensor
    ancestors: Tensor
    max_depth: int
    draft_probs: Tensor | None = None
    scores: Tensor | None = None

    @classmethod
    def build(
        cls,
        tokens: Tensor,
        parents: Tensor,
        *,
        max_depth: int,
        valid: Tensor | None = None,
        candidates: Tensor | None = None,
        draft_probs: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> DraftTree:
        """Derive depths and ancestors from `tokens` and `parents` (both [B, N]).

        `candidates` are all valid nodes by default.
        """
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        if candidates is None:
            candidates = valid.clone()
            candidates[:, 0] = False
        ancestors = ancestors_of(parents, valid)
        depths = ancestors.sum(-1) - 1
        max_depth = min(max_depth, tokens.shape[1] - 1)
        return cls(
            tokens, parents, valid, candidates, depths, ancestors, max_depth, draft_probs, scores
        )

    @classmethod
    def root_only(cls, roots: Tensor) -> DraftTree:
        """The empty draft: one column holding `roots` [B]."""
        tokens = roots[:, None]
        zeros, no = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
        return cls(tokens, zeros, ~no, no, zeros, ~no[:, None], max_depth=0)

    @classmethod
    def chain(
        cls,
        roots: Tensor,
        drafts: Tensor,
        counts: Tensor | None = None,
        draft_probs: Tensor | None = None,
    ) -> DraftTree:
        """One branch per row: `drafts` [B, G] after `roots` [B].

        `counts` [B] says how many of a row's drafts are real (all by default); `draft_probs`
        [B, G, V] are the distributions they were drawn from.
        """
        batch, num_drafts = drafts.shape
        tokens = torch.cat([roots[:, None], drafts], dim=1)
        columns = torch.arange(num_drafts + 1, device=drafts.device)
        parents = (columns - 1).clamp(min=0).expand(batch, -1)
        valid = None if counts is None else columns[None] <= counts[:, None]
        if draft_probs is not None:  # the last node has no children, its distribution is never read
            draft_probs = torch.cat([draft_probs, draft_probs[:, -1:]], dim=1)
        return cls.build(
            tokens, parents, max_depth=num_drafts, valid=valid, draft_probs=draft_probs
        )

    @classmethod
    def from_branches(cls, roots: Tensor, branches: Sequence[Sequence[Sequence[int]]]) -> DraftTree:
        """Join branches into one tree per row; equal siblings become one node.

        Args:
            roots: [B].
            branches: for each row, token lists that all start after the root; none for an
                empty draft.
        """
        rows = [_trie(row) for row in branches]
        most = max(len(tokens) for tokens, _ in rows)
        padded = torch.zeros(3, len(rows), 1 + most, dtype=torch.long)  # tokens, parents, valid
        padded[2, :, 0] = 1
        for row, (tokens, parents) in enumerate(rows):
            padded[0, row, 1 : 1 + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            padded[1, row, 1 : 1 + len(tokens)] = torch.tensor(parents, dtype=torch.long)
            padded[2, row, 1 : 1 + len(tokens)] = 1
        tokens, parents, valid = padded.to(roots.device)
        tokens[:, 0] = roots
        longest = max((len(branch) for row in branches for branch in row), default=0)
        return cls.build(tokens, parents, max_depth=longest, valid=valid.bool())

    @property
    def num_columns(self) -> int:
        """N: the root and the nodes, padding included."""
        return self.tokens.shape[1]

    def confidences(self) -> Tensor | None:
        """[B, N] the drafter's probability of each node after its parent; None without scores."""
        if self.scores is None:
            return None
        return (self.scores - self.scores.gather(1, self.parents)).exp()

    def num_nodes(self) -> Tensor:
        """Drafted nodes per row [B]: its candidates."""
        return self.candidates.sum(1)


@dataclass
class Scores:
    """The target's answers to one pass.

    Attributes:
        logits: [B, N, V] at every column (`extend`: [B, 1, V] at the last token of each row).
        features: by name (`targets.features`), [B, N, F] at every column.
    """

    logits: Tensor
    features: dict[str, Tensor]

    def select(self, rows: Sequence[int]) -> Scores:
        """The chosen rows."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.logits.device)
        return Scores(self.logits[index], {name: one[index] for name, one in self.features.items()})
