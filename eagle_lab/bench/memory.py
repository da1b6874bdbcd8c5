"""Memory: the peak of a stretch of work, what is free, and how to free more."""

from __future__ import annotations

import gc
import logging
import os
import sys

import torch

log = logging.getLogger(__name__)


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
    """Bytes that can still be allocated on `device`, what torch keeps in reserve included.

    Systems that do not tell what is free (macOS) count as empty, others as boundless.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return _pages("SC_AVPHYS_PAGES") or total_bytes(device)


def total_bytes(device: torch.device) -> int:
    """Memory of `device`, in use or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return _pages("SC_PHYS_PAGES") or sys.maxsize


def give_back() -> None:
    """Hand memory that nothing uses back to the device.

    Models, proposers and their CUDA graphs hold each other, so they go only when looked for. An
    allocator that cannot (torch 2.11's, once a capture failed) keeps what it has.
    """
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:
            log.warning("memory of the GPU is not given back: %s", error)


def _pages(name: str) -> int | None:
    """Bytes of the system's count `name`; None where it has no such count."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
