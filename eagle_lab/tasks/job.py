"""What every job of a run or sweep starts with, so that none depends on the one before it."""

from __future__ import annotations

import random

import numpy as np
import torch

from eagle_lab.errors import UserError


def reset(seed: int, threads: int | None) -> None:
    """Seed every generator, start CUDA's peak-memory counters afresh, set torch's CPU threads.

    Raises:
        UserError: `threads` below 1 or a negative seed.
    """
    if seed < 0:
        raise UserError(f"seed={seed}: must be 0 or more")
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads}: must be 1 or more, or null")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if threads is not None:
        torch.set_num_threads(threads)
