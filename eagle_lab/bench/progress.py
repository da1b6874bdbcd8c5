"""The line one watches while a bench runs: what is decoded now, tau so far, time left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType

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
from eagle_lab.methods.build import Method


class BenchProgress:
    """A bar over the (batch, method) pairs of a bench; a context manager.

    Args:
        total: pairs to come.
        console: where to draw; None draws nothing.
    """

    def __init__(self, total: int, console: Console | None = None):
        self._bar = Progress(
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
        self._task = self._bar.add_task("bench", total=total, tau="")
        self._emitted: Counter[str] = Counter()
        self._cycles: Counter[str] = Counter()

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def announce(self, text: str) -> None:
        """Say what is going on before the first pair, such as the warm-up."""
        self._bar.update(self._task, description=text)

    def begin(self, method: Method) -> None:
        """Name the method about to be decoded."""
        self._bar.update(self._task, description=method.label, tau=self._tau(method.label))

    def finish(self, method: Method, rows: Sequence[Row]) -> None:
        """Count one (batch, method) pair as done."""
        self._emitted[method.label] += sum(sum(row["emitted_lengths"]) for row in rows)
        self._cycles[method.label] += sum(len(row["emitted_lengths"]) for row in rows)
        self._bar.update(self._task, advance=1, tau=self._tau(method.label))

    def _tau(self, label: str) -> str:
        cycles = self._cycles[label]
        return f"tau {self._emitted[label] / cycles:.2f}" if cycles else "tau    -"
