"""What jobs share: a start that does not depend on the job before, and the law they sample by."""

from __future__ import annotations

import random

import numpy as np
import torch
from omegaconf import DictConfig

from eagle_lab.errors import UserError
from eagle_lab.sampling import Sampling


def reset(seed: int, threads: int | None) -> None:
    """Seed every generator, start CUDA's peak-memory counters afresh, set torch's CPU threads.

    Raises:
        UserError: `threads` below 1, or a seed that is negative or beyond 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"seed={seed}: must be 0 to {2**63 - 1}")
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads}: must be 1 or more, or null")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if threads is not None:
        torch.set_num_threads(threads)


def sampling_from(config: DictConfig, section: str) -> Sampling:
    """The sampling law of a section, `eval` or `data`; its errors carry the section's name."""
    asked = config[section]
    try:
        return Sampling(asked.temperature, asked.top_p, asked.top_k)
    except UserError as error:
        raise UserError(f"{section}.{error}") from None
