"""Lookahead decoding: n-grams from parallel Jacobi iterations, verified in the same pass.

A window of N - 1 rows and W columns (2402.02057, section 3) lies in the tree beside the guesses.
Column 0 of row 0 is the root; a node of row 0 hangs on the one before it, every other node on the
one above it. Each pass gives the token after every node of the last row, which completes W
n-grams for the pool and moves the window up by one row. N = 4, W = 3:

    row 0    root -- a -- b                 n-grams: root c f i, a d g j, b e h k
               |     |    |                 (the target's own i, j, k after f, g, h)
    row 1      c     d    e
               |     |    |                 the next window: the new root d e
    row 2      f     g    h                                           f g h
              (i)   (j)  (k)                                          i j k

Guesses are the pool's entries for the root, branches that see nothing of the window. Window nodes
are no candidates: they are never accepted and never counted. The window's tokens come from argmax
at every temperature and no guess depends on a uniform of its own cycle, so guesses are point-mass
proposals and sampling stays exact.

Shapes: B rows, W, N and G as in the paper, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.engine.tree_shapes import side_by_side
from eagle_lab.engine.verify import Acceptance
from eagle_lab.errors import UserError


class NgramPool:
    """For each first token the `capacity` continuations that were seen last."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._entries: defaultdict[int, dict[tuple[int, ...], None]] = defaultdict(dict)

    def add(self, ngram: Sequence[int]) -> None:
        """Note that `ngram[1:]` followed `ngram[0]`; the oldest entry makes room."""
        first, *rest = ngram
        entries = self._entries[first]
        entries.pop(tuple(rest), None)
        entries[tuple(rest)] = None
        if len(entries) > self.capacity:
            del entries[next(iter(entries))]

    def continuations(self, first: int) -> list[tuple[int, ...]]:
        """Continuations of `first`, the latest first."""
        return list(reversed(self._entries.get(first, {})))


class Lookahead(Proposer):
    """Window, pool and verification in one target pass; every row has its own pool.

    Attributes:
        max_nodes: columns of window and guesses beside the root.
        sizes: of what is verified, as a bench shows it: depth N - 1, nodes G (N - 1), and as width
            the window's W, of which nothing is a candidate.
    """

    reads_all_scores = True  # those of the window's nodes, too

    def __init__(
        self,
        *,
        window_size: int = 7,
        ngram_size: int = 5,
        num_guesses: int = 7,
    ):
        """`window_size` is W, `ngram_size` N, `num_guesses` G.

        Raises `UserError` unless W >= 1, N >= 2 and G >= 1.
        """
        if window_size < 1 or ngram_size < 2 or num_guesses < 1:
            raise UserError(
                f"lookahead: window_size={window_size}, ngram_size={ngram_size}, num_guesses="
                f"{num_guesses}; needed: window_size >= 1, ngram_size >= 2, num_guesses >= 1"
            )
        self.window_size, self.ngram_size = window_size, ngram_size
        self.num_guesses = num_guesses
        num_levels = ngram_size - 1
        self.num_window = num_levels * window_size  # columns, the root among them
        num_candidates = num_guesses * num_levels
        self.max_nodes = self.num_window - 1 + num_candidates
        self.sizes = {"depth": num_levels, "width": window_size, "num_nodes": num_candidates}

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Lay the first window: the beginning of the row's text, over and over, diagonal by
        diagonal; any tokens would do.
        """
        self.pools = [NgramPool(self.num_guesses) for _ in context.tokens]
        levels = torch.arange(self.ngram_size - 1)[:, None]
        places = levels + torch.arange(self.window_size)
        rows = [torch.tensor(tokens)[places % len(tokens)] for tokens in context.tokens]
        self.window = torch.stack(rows).to(context.roots.device)  # [B, N - 1, W]
        self.window[:, 0, 0] = context.roots

    def propose(self, context: Context) -> DraftTree:
        """The window in the first columns, the pool's guesses for the root after it."""
        guesses = [
            pool.continuations(tokens[-1])
            for pool, tokens in zip(self.pools, context.tokens, strict=True)
        ]
        return side_by_side(
            window_tree(self.window), DraftTree.from_branches(context.roots, guesses)
        )

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Complete the window's n-grams and move it up by one row."""
        last_row = scores.logits[:, self.num_window - self.window_size : self.num_window]
        found = last_row.argmax(-1)[:, None]  # [B, 1, W]
        ngrams = torch.cat([self.window, found], dim=1)  # [B, N, W]
        for pool, columns in zip(self.pools, ngrams.transpose(1, 2).tolist(), strict=True):
            for ngram in columns:
                pool.add(ngram)
        self.window = ngrams[:, 1:].clone()
        self.window[:, 0, 0] = context.roots

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.pools = [self.pools[row] for row in rows]
        self.window = self.window[torch.as_tensor(rows, dtype=torch.long)]


def window_tree(window: Tensor) -> DraftTree:
    """The tree of `window` [B, N - 1, W], whose column 0 is the root; none of it a candidate."""
    batch, _, width = window.shape
    tokens = window.flatten(1)
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    parents = torch.where(columns < width, (columns - 1).clamp(min=0), columns - width)
    return DraftTree.build(
        tokens,
        parents.expand(batch, -1),
        max_depth=0,
        candidates=torch.zeros_like(tokens, dtype=torch.bool),
    )
