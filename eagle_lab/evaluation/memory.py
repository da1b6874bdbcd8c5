"""Memory: the peak of a stretch of work, and what is free."""

from __future__ import annotations

import os
import sys

import torch


class PeakMemory:
    """Peak since `start`, in MiB: CUDA's own, or the process's on a CPU.

    On a CPU the operating system knows one peak per process, which never falls: there it is the
    peak since the process began.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def start(self) -> None:
        """Forget the peak so far, where that can be done."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def megabytes(self) -> float | None:
        """The peak, or None where nobody counts it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        try:
            import resource
        except ImportError:  # Windows
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`, what torch keeps in reserve included."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
