"""Sampling distributions and the uniforms that decide them.

A distribution turns logits into probabilities (temperature, then top-k, then top-p, the order of
Hugging Face's logits processors). A uniform is a number in [0, 1) that depends only on (row key,
position, purpose, slot): a row's text does not change with its neighbours, the batch size or the
device. Knows no tree and no model.

Shapes: V vocabulary, B rows, P positions, K draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from eagle_lab.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """A sampling distribution.

    Attributes:
        temperature: 0 is greedy (argmax, the first index wins ties).
        top_p: keep the smallest set of tokens whose mass reaches this; 1 keeps all.
        top_k: keep the k most probable tokens (and ties with the k-th); 0 keeps all.

    Raises:
        UserError: for values outside their range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature}: must be 0 (greedy) or positive")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p}: must be in (0, 1]")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k}: must be 0 (all tokens) or positive")

    @property
    def greedy(self) -> bool:
        """Whether the distribution is the argmax."""
        return self.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """Distribution of the next token, float32 [..., V]; one-hot at temperature 0."""
        logits = logits.float()
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        logits = logits / self.temperature
        if self.top_k:
            k = min(self.top_k, logits.shape[-1])
            threshold = logits.topk(k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < threshold, -torch.inf)
        probs = torch.softmax(logits, dim=-1)
        if self.top_p < 1:
            probs = _nucleus(probs, self.top_p)
        return probs


def _nucleus(probs: Tensor, top_p: float, num_sorted: int = 4096) -> Tensor:
    """The distribution of the smallest set of tokens whose mass reaches `top_p` [..., V].

    Of equal tokens at its edge those with the lower index belong to it. Only the `num_sorted` most
    probable tokens are sorted unless the set is larger.
    """
    num_sorted = min(num_sorted, probs.shape[-1])
    ordered = probs.topk(num_sorted, dim=-1).values
    inside = ordered.cumsum(-1) - ordered < top_p
    if num_sorted < probs.shape[-1] and bool(inside[..., -1].any()):
        return _nucleus(probs, top_p, probs.shape[-1])
    size = inside.sum(-1, keepdim=True)
    least = ordered.gather(-1, size - 1)
    inside = probs >= least
    if bool((inside.sum(-1, keepdim=True) > size).any()):  # several are equal to the last one
        above, equal = probs > least, probs == least
        inside = above | (equal & (equal.cumsum(-1) <= size - above.sum(-1, keepdim=True)))
    probs = probs.where(inside, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [...] drawn from `probs` [..., V] by inverse CDF with `uniforms` [...].

    A token of probability 0 is not returned, not even for a uniform of exactly 0 or next to 1, as
    long as the running sum never falls (a parallel sum on a GPU may, by its rounding). `probs`
    need not sum to 1.
    """
    cdf = probs.double().cumsum(-1)
    total = cdf[..., -1:].contiguous()
    index = torch.searchsorted(cdf, uniforms.to(cdf)[..., None] * total, right=True)
    last_positive = torch.searchsorted(cdf, total)
    return torch.minimum(index, last_positive)[..., 0]


def draw_without_replacement(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct tokens drawn one after the other.

    Args:
        probs: [..., V] distribution of the first draw; later ones are renormalized without the
            tokens drawn before.
        uniforms: [..., K] one for each draw.

    Returns:
        Tokens [..., K], and [..., K] whether there was mass left to draw from.
    """
    remaining = probs.clone()
    drawn, possible = [], []
    for uniform in uniforms.unbind(-1):
        token = draw(remaining, uniform)[..., None]
        drawn.append(token)
        possible.append(remaining.gather(-1, token) > 0)
        remaining.scatter_(-1, token, 0.0)
    return torch.cat(drawn, dim=-1), torch.cat(possible, dim=-1)


class Purpose(IntEnum):
    """The decision that a uniform makes; uniforms of different purposes are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: np.ndarray) -> np.ndarray:
    """One round of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) on uint64."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def row_key(seed: int, question_id: object, turn: int, repeat: int) -> int:
    """Key of a row's uniforms: 64 bits that depend on all four arguments."""
    text = f"{seed}\x1f{question_id}\x1f{turn}\x1f{repeat}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


class Uniforms:
    """Uniforms of a batch of rows, one key per row; equal keys give equal uniforms.

    Args:
        row_keys: see `row_key`.
        device: of the uniforms.
    """

    def __init__(self, row_keys: Sequence[int] | np.ndarray, device: torch.device | None = None):
        self.keys = np.asarray(row_keys, dtype=np.uint64)
        self.device = device or torch.device("cpu")

    def select(self, rows: Sequence[int]) -> Uniforms:
        """Uniforms of the chosen rows."""
        return Uniforms(self.keys[np.asarray(rows, dtype=np.int64)], self.device)

    def draw(self, positions: Tensor, purpose: Purpose, count: int = 1) -> Tensor:
        """Uniform numbers [B, P, count], float64.

        `positions` [B, P] are the places in their rows of the tokens that the uniforms decide. They
        are on the host, where uniforms are made, so there is no host sync.
        """
        places = positions.numpy().astype(np.uint64)
        state = _mix(_mix(self.keys)[:, None] + np.uint64(int(purpose)))
        state = _mix(state ^ places)
        state = _mix(state[..., None] + _GOLDEN * np.arange(count, dtype=np.uint64))
        uniform = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.from_numpy(uniform).to(self.device, non_blocking=True)
