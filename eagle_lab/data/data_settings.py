"""How a store becomes batches, and what became of its conversations."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_lab.errors import UserError, choose

ANSWERS, ALL = "answers", "all"


@dataclass(frozen=True)
class DataSettings:
    """How a store becomes batches.

    Attributes:
        batch_tokens: tokens of a batch, on average.
        max_length: conversations are cut to this many tokens.
        val_fraction: share of the conversations held out.
        max_tokens: train on at most this many tokens, a random share of all stores that a larger
            share holds; None for all. What is held out does not depend on it.
        seed: of split and order.
        supervise: what is learned of a conversation: the assistant's tokens (`answers`), or the
            user's and the template's, too (`all`). What is held out are answers either way.
    """

    batch_tokens: int
    max_length: int
    val_fraction: float
    max_tokens: int | None
    seed: int
    supervise: str = ANSWERS

    def __post_init__(self) -> None:
        choose(self.supervise, (ANSWERS, ALL), "trainer.supervise")
        for name, lowest in (("batch_tokens", 1), ("max_length", 3), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise UserError(f"trainer.{name}={value}; allowed: {lowest} or more")


@dataclass(frozen=True)
class DataCounts:
    """What became of the store's conversations; tokens and labels are of those in use."""

    num_conversations: int
    num_skipped: int
    num_cut: int
    num_train: int
    num_val: int
    num_train_tokens: int
    num_train_labels: int
    num_val_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.num_conversations} conversations: {self.num_train} to train on "
            f"({self.num_train_tokens} tokens, {self.num_train_labels} of them labels), "
            f"{self.num_val} to validate on ({self.num_val_tokens} tokens), "
            f"{self.num_skipped} skipped without a label, {self.num_cut} cut to max_length"
        )
