"""One branch drafted by an EAGLE drafter: what serving engines use at larger batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.decoding.chain import Draws, check_stop_confidence, draft_chain
from eagle_lab.decoding.draft_length import DraftLength
from eagle_lab.decoding.eagle import EagleProposer
from eagle_lab.decoding.proposer import Context
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.models.target import Scores, Target
from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.verify import Acceptance


class EagleChain(EagleProposer):
    """One branch of up to `num_draft_tokens`."""

    draws_children = True

    def __init__(
        self,
        target: Target,
        drafter: Eagle1,
        *,
        num_draft_tokens: int = 5,
        adaptive: bool = False,
        stop_confidence: float = 0.0,
    ):
        """Set up the chain.

        Args:
            target: the model.
            drafter: its drafter.
            num_draft_tokens: length of the chain, at least 1.
            adaptive: let each row's length follow what was accepted, see `DraftLength`.
            stop_confidence: a row's draft ends where the drafter gives its best next path less
                probability than this; 0 never stops.

        Raises:
            UserError: a value outside its range.
        """
        super().__init__(target, drafter)
        self._length = DraftLength("eagle_chain", num_draft_tokens, adaptive=adaptive)
        self.max_nodes = num_draft_tokens
        self.stop_confidence = check_stop_confidence("eagle_chain", stop_confidence)

    def begin(self, context: Context, features: Tensor) -> None:
        """Read all pairs of the prompts."""
        super().begin(context, features)
        self._length.begin(len(context.tokens))

    @torch.no_grad()
    def propose(self, context: Context) -> DraftTree:
        """One pass of the drafter per token but the first, for all rows together."""
        hidden, depth = self.root_hidden, 0

        def next_logits(last: Tensor | None) -> Tensor:
            nonlocal hidden, depth
            if last is not None:
                depth += 1
                tokens = self.target_ids(last)[:, None]
                visible = torch.ones(len(last), 1, depth, dtype=torch.bool, device=last.device)
                hidden = self.guess(self.cache, tokens, hidden, depth, visible)
            return self.drafter.logits(hidden)[:, 0]

        chain = draft_chain(
            next_logits,
            self._length.wanted,
            device=context.roots.device,
            draws=Draws.of(context, self.max_nodes),
            stop_confidence=self.stop_confidence,
        )
        self._length.drafted(chain.counts)
        laws = None if chain.laws is None else self.full_law(chain.laws)
        return DraftTree.chain(context.roots, self.target_ids(chain.tokens), chain.counts, laws)

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Replace guessed pairs by true ones, and learn how much was accepted."""
        super().observe(context, acceptance, scores)
        self._length.observe(acceptance.num_accepted)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        super().select(rows)
        self._length.select(rows)
