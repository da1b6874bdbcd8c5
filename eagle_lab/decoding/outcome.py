"""What the host must know of a cycle, fetched from the device at once.

Every look of the host at a value on a GPU waits until all that was launched before has run. One is
needed in each cycle, for the tokens themselves; everything else the loop wants to know then comes
along, and the rest it knows already: as much text as there is, so much is in the caches. Coins
need none either: the host makes them from the lengths of the texts.

More looks are taken by the top-p law (how many tokens reach it), by drafts whose length follows
what was accepted or how probable they are, by draft models (what they have read), and by copies
grafted onto a drafted tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.verify import Acceptance


@dataclass(frozen=True)
class Outcome:
    """A cycle on the host.

    Attributes:
        new_tokens: of each row, the accepted ones and the target's own.
        num_nodes: nodes verified in each row.
        num_judged: of each row, drafted tokens on the text's way that were judged: the accepted
            ones, and one more if the draft went on behind them.
        moved: whether any row keeps a node that does not follow the one kept before it.
    """

    new_tokens: list[list[int]]
    num_nodes: list[int]
    num_judged: list[int]
    moved: bool

    @classmethod
    def fetch(cls, tree: DraftTree, acceptance: Acceptance) -> Outcome:
        """Wait for the outcome of verifying `tree`."""
        num_accepted, path = acceptance.num_accepted[:, None], acceptance.path
        steps = torch.arange(path.shape[1], device=path.device)
        moved = ((path != steps) & (steps <= num_accepted)).any(1, keepdim=True)
        last = path.gather(1, num_accepted)
        went_on = (tree.candidates & (tree.parents == last)).any(1, keepdim=True)
        num_judged = num_accepted + went_on
        num_nodes = tree.num_nodes()[:, None]
        parts = (num_accepted, num_nodes, num_judged, moved, acceptance.tokens)
        rows = torch.cat([part.long() for part in parts], dim=1).tolist()
        return cls(
            new_tokens=[tokens[: count + 1] for count, _, _, _, *tokens in rows],
            num_nodes=[row[1] for row in rows],
            num_judged=[row[2] for row in rows],
            moved=any(row[3] for row in rows),
        )
