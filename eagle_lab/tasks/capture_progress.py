"""What a person sees of a capture under way, and the look at the disk before it starts."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_lab.data.store_writer import StoreWriter
from eagle_lab.errors import UserError


def check_disk(folder: Path, needed: int) -> None:
    """UserError unless the disk of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"this capture needs about {size(needed)} on the disk of '{folder}', which has "
            f"{size(free)} free; lower data.num_tokens, or take another output_dir"
        )


def size(num_bytes: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


class CaptureProgress:
    """A bar with tokens per second, bytes and time left; off a terminal a line per shard.

    Args:
        writer: of the store, for what it holds.
        max_tokens: the assistant's tokens at which the capture ends, or None.
        num_conversations: at which it ends, or None.
    """

    def __init__(
        self,
        console: Console,
        writer: StoreWriter,
        max_tokens: int | None,
        num_conversations: int | None,
    ):
        self.console = console
        self.writer = writer
        self.max_tokens = max_tokens
        self.num_conversations = num_conversations
        self.num_new = 0
        self.start = time.monotonic()
        self.progress = Progress(
            TextColumn("capture"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=self._total(), completed=writer.num_supervised)
        self.before = writer.num_supervised

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    @property
    def speed(self) -> float:
        """Answer tokens per second of this process."""
        return self.num_new / max(time.monotonic() - self.start, 1e-9)

    def on_tokens(self, num: int) -> None:
        """Count new answer tokens."""
        self.num_new += num
        self.progress.update(self.bar, completed=self._done(), description=self._state())

    def on_shard(self) -> None:
        """Note a whole shard."""
        total = self._total()
        self.progress.update(self.bar, total=total, description=self._state())
        if not self.console.is_terminal:
            left = ""
            if total and self.num_new:
                minutes = max(0.0, total - self._done()) / self.speed / 60
                left = f", about {minutes:.1f} min left"
            self.console.print(f"shard {self.writer.num_shards}: {self._state()}{left}")

    def _done(self) -> int:
        return self.before + self.num_new

    def _total(self) -> float | None:
        """Answer tokens at the end, as far as can be told by now."""
        limits = [self.max_tokens] if self.max_tokens else []
        stored = int(self.writer.index["num_conversations"])
        if self.num_conversations and stored:
            limits.append(self.writer.num_supervised * self.num_conversations // stored)
        return min(limits) if limits else None

    def _state(self) -> str:
        stored = size(self.writer.index["num_bytes"])
        return f"{self._done():,} answer tokens, {self.speed:.0f} tokens/s, {stored}"
