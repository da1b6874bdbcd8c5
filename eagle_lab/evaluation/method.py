"""A method of a bench: a name, a proposer, a drafter if it needs one, its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VANILLA = "vanilla"


@dataclass(frozen=True)
class Method:
    """One row of a bench's summary.

    Attributes:
        name: its name in conf/method/; several settings of one method share it.
        proposer: what drafts; None if the setting is infeasible.
        drafter: name of the drafter's folder, if there is one.
        drafter_matches_target: whether the drafter was trained for this target.
        depth, width, num_nodes: size of the draft tree, None where they do not apply.
        infeasible: why the setting cannot be, None if it can.
    """

    name: str
    proposer: Any = None
    drafter: str | None = None
    drafter_matches_target: bool | None = None
    depth: int | None = None
    width: int | None = None
    num_nodes: int | None = None
    infeasible: str | None = None

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
