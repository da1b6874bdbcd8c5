"""A method of a bench: a name, a proposer, a drafter if it needs one, its settings.

A peer has no proposer: another library decodes, in its own loop. To the bench it is a `Decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from eagle_lab.decoding.generation import Generation
from eagle_lab.decoding.proposer import Proposer
from eagle_lab.sampling import Sampling

VANILLA = "vanilla"


@runtime_checkable
class Decoder(Protocol):
    """Another engine's loop, from prompts to generations counted as our own are.

    Attributes:
        max_batch_size: most prompts it decodes side by side; None for any number.
        max_nodes: most tokens drafted per pass.
        context_length: most tokens of a prompt, its answer and a draft.
    """

    max_batch_size: int | None
    max_nodes: int
    context_length: int

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        row_keys: Sequence[int] | None = None,
    ) -> list[Generation]:
        """Decode a batch; arguments and result are those of `decoding.loop.decode`."""
        ...


@dataclass(frozen=True)
class Method:
    """One row of a bench's summary.

    Attributes:
        name: its name in conf/method/; several settings of one method share it.
        proposer: what drafts; None for a peer, or if the setting is infeasible.
        decoder: what decodes in its own way: a peer; None for the methods of our loop.
        drafter: name of the drafter's folder, if there is one.
        drafter_matches_target: whether the drafter was trained for this target.
        depth, width, num_nodes: size of the draft tree, None where they do not apply; the nodes are
            the candidates that a pass verifies.
        context_length: most tokens of a text that what drafts or decodes can read; None where only
            the target's own context counts.
        infeasible: why the setting cannot be, None if it can.
    """

    name: str
    proposer: Proposer | None = None
    decoder: Decoder | None = None
    drafter: str | None = None
    drafter_matches_target: bool | None = None
    depth: int | None = None
    width: int | None = None
    num_nodes: int | None = None
    context_length: int | None = None
    infeasible: str | None = None

    def at_batch_size(self, batch_size: int) -> Method:
        """This method, infeasible if its decoder takes fewer prompts at a time."""
        most = None if self.decoder is None else self.decoder.max_batch_size
        if most is None or batch_size <= most:
            return self
        reason = f"{self.name} decodes at most {most} prompts side by side, not {batch_size}"
        return replace(self, decoder=None, infeasible=reason)

    def at_length(self, num_tokens: int) -> Method:
        """This method, infeasible if what drafts or decodes cannot read texts of `num_tokens`."""
        needed = num_tokens + self.max_nodes
        if self.context_length is None or needed <= self.context_length:
            return self
        reason = (
            f"{self.name} reads at most {self.context_length} tokens; the longest prompt, its "
            f"answer and a draft may have {needed}"
        )
        return replace(self, proposer=None, decoder=None, infeasible=reason)

    @property
    def max_nodes(self) -> int:
        """Most slots that a draft takes beside the root's, those of no candidates included."""
        built = self.proposer or self.decoder
        return 0 if built is None else built.max_nodes

    def forget(self) -> None:
        """Make the proposer forget earlier batches, if it remembers any."""
        if self.proposer is not None:
            self.proposer.forget()

    @property
    def settings(self) -> dict[str, int | None]:
        """What tells two rows of one method apart, as the columns of every result file."""
        return {"depth": self.depth, "width": self.width, "num_nodes": self.num_nodes}

    @property
    def key(self) -> tuple[str, int | None, int | None, int | None]:
        """Identity within a bench; see `key_of`."""
        return (self.name, self.depth, self.width, self.num_nodes)

    @property
    def label(self) -> str:
        """Name and settings for a line of progress, such as `eagle_dynamic 6/10/59`."""
        sizes = [str(size) for size in self.key[1:] if size is not None]
        return f"{self.name} {'/'.join(sizes)}".strip()

    def replayable(self, sampling: Sampling) -> bool:
        """Whether all it asks of the target lies along the text that plain decoding emits."""
        if self.proposer is None:
            return False
        draws = self.proposer.draws_children and not sampling.greedy
        return not draws and not self.proposer.reads_all_scores

    @property
    def repeatable(self) -> bool:
        """Whether decoding a batch once more gives the same cycles."""
        return self.proposer is None or not self.proposer.remembers_answers

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from vanilla's by design."""
        return "lossy" in self.name


def key_of(row: dict[str, Any]) -> tuple[str, int | None, int | None, int | None]:
    """The `Method.key` that a row of generations.jsonl belongs to."""
    return (row["method"], row["depth"], row["width"], row["num_nodes"])


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What no two rows of a bench share: method, settings, question, turn and repeat."""
    return (*key_of(row), row["question_id"], row["turn"], row["repeat"])
