"""The line one watches while a bench runs: what is decoded now, tau so far, time left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from eagle_lab.bench.statistics import Row


class BenchProgress(Progress):
    """A bar over the (batch, method) pairs of a bench; a context manager.

    Args:
        num_pairs: pairs to come.
        console: where to draw; None draws nothing.
    """

    def __init__(self, num_pairs: int, console: Console | None = None):
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tau]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            disable=console is None,
        )
        self._pairs = self.add_task("warm-up", total=num_pairs, tau="")
        self._emitted: Counter[str] = Counter()
        self._cycles: Counter[str] = Counter()

    def begin(self, label: str) -> None:
        """Name the method about to be decoded."""
        self.update(self._pairs, description=label, tau=self._tau(label))

    def finish(self, label: str, rows: Sequence[Row]) -> None:
        """Count one (batch, method) pair as done."""
        self._emitted[label] += sum(sum(row["emitted_lengths"]) for row in rows)
        self._cycles[label] += sum(len(row["emitted_lengths"]) for row in rows)
        self.update(self._pairs, advance=1, tau=self._tau(label))

    def _tau(self, label: str) -> str:
        cycles = self._cycles[label]
        return f"tau {self._emitted[label] / cycles:.2f}" if cycles else "tau    -"
