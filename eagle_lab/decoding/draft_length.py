"""How many tokens to draft for each row: always as many as allowed, or what lately paid.

Adaptive lengths follow the `heuristic` schedule of assisted generation in transformers: two more
after a draft that was accepted whole, one less after any other, here within 1 ... most. A length
depends on the row's own past alone, never on what is drawn next or on its neighbours, so sampled
text keeps the target's law and no row's text changes with its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eagle_lab.errors import UserError

GROWTH, SHRINKAGE = 2, 1


class DraftLength:
    """Draft lengths of a batch of rows.

    Args:
        method: name of the method, for the error.
        most: longest draft, and the first one of every row.
        adaptive: follow what was accepted; otherwise every draft may be `most` long.

    Attributes:
        wanted: tokens to draft for each row, set by `begin`.

    Raises:
        UserError: `most` is below 1.
    """

    def __init__(self, method: str, most: int, *, adaptive: bool):
        if most < 1:
            raise UserError(f"{method}: num_draft_tokens={most} must be at least 1")
        self.most, self.adaptive = most, adaptive
        self.wanted: list[int] = []
        self._drafted: list[int] = []

    def begin(self, num_rows: int) -> None:
        """Start afresh with `num_rows` rows."""
        self.wanted = [self.most] * num_rows
        self._drafted = []

    def drafted(self, counts: Tensor | Sequence[int]) -> None:
        """Note how many tokens each row's draft really has; fewer than wanted is no failure."""
        if self.adaptive:
            self._drafted = counts.tolist() if isinstance(counts, Tensor) else list(counts)

    def observe(self, num_accepted: Tensor) -> None:
        """Adapt to `num_accepted` [B] of the last draft; an empty draft teaches nothing."""
        if not self.adaptive:
            return
        pairs = zip(self._drafted, num_accepted.tolist(), strict=True)
        for row, (drafted, accepted) in enumerate(pairs):
            if drafted:
                change = GROWTH if accepted == drafted else -SHRINKAGE
                self.wanted[row] = min(max(self.wanted[row] + change, 1), self.most)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.wanted = [self.wanted[row] for row in rows]
        if self.adaptive:
            self._drafted = [self._drafted[row] for row in rows]
