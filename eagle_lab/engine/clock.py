"""Seconds on the device: laps read one by one (`Clock`) or all at the end (`Laps`)."""

from __future__ import annotations

import itertools
import time

import torch


class Clock:
    """Wall-clock laps that wait for the device."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._last = 0.0
        self.lap()

    def lap(self) -> float:
        """Seconds since the last lap."""
        if self._cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


class Laps:
    """Laps of a decode; on CUDA a lap ends when the work launched so far has run.

    Its end is an event among the launches, so timing makes no host sync. Laps add up to the time
    from the first event to the last, the device's idle time included.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.end()

    def end(self) -> None:
        """A lap ends here, the next one begins."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """All laps in order; waits for the last one."""
        if not self._cuda:
            return [later - earlier for earlier, later in itertools.pairwise(self._times)]
        self._events[-1].synchronize()
        pairs = itertools.pairwise(self._events)
        return [earlier.elapsed_time(later) / 1000 for earlier, later in pairs]
