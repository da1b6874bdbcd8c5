"""Attention of training-time test steps over packed conversations.

At step 0 a row sees the rows of its own conversation up to itself; rows that do not count give
keys only. At step s row p also sees its own keys of steps 1 … s, and of no other row's: just what
a chain drafted from p would find in the drafter's cache.
For one conversation of three rows at step 2 (1 = attend):

            step-0 keys   step-1 keys   step-2 keys
    row 0     1 0 0         1 0 0         1 0 0
    row 1     1 1 0         0 1 0         0 1 0
    row 2     1 1 1         0 0 1         0 0 1

Rows that no longer count at a step are left out of its queries. Conversations never see each
other: each is attended over by itself.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from eagle_lab.targets.attention import attention


def training_test_mask(rows: Tensor, num_keys: int, step: int) -> Tensor:
    """The mask of one conversation at `step`, bool [n, num_keys + step·n].

    Args:
        rows: index within the conversation of each of the n rows that count, ascending.
        num_keys: rows of the conversation at step 0.
    """
    causal = torch.arange(num_keys, device=rows.device) <= rows[:, None]
    diagonal = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return torch.cat((causal, diagonal.repeat(1, step)), dim=1)


class TrainingTestAttention:
    """An `attend` for the drafter that remembers the keys of earlier steps.

    Call order for each step: `select(rows)` with the rows that count (a subset of the step
    before), then the drafter; at step 0 with keys of all P rows, later of those rows alone.
    """

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.starts = [0, *itertools.accumulate(lengths)]
        self.rows: list[Tensor] = []  # of each step; flat indices, ascending
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def select(self, rows: Tensor) -> None:
        """Flat indices, ascending, of the rows that the next call asks about."""
        self.rows.append(rows)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [1, heads, n, d], key and value [1, kv_heads, P or n, d] -> [1, heads, n, d]."""
        self.keys.append(key)
        self.values.append(value)
        rows, step = self.rows[-1], len(self.rows) - 1
        bounds = torch.searchsorted(rows, torch.tensor(self.starts, device=rows.device))
        num_rows = bounds.diff().tolist()  # of each document
        queries = query.split(num_rows, dim=2)
        keys = self._by_document(self.keys, num_rows)
        values = self._by_document(self.values, num_rows)
        attended = [query[:, :, :0]]
        for number, own_rows in enumerate(rows.split(num_rows)):
            if len(own_rows) == 0:
                continue
            mask = training_test_mask(own_rows - self.starts[number], self.lengths[number], step)
            states = queries[number], keys[number], values[number]
            attended.append(attention(*states, mask[None, None], query.shape[-1] ** -0.5))
        return torch.cat(attended, dim=2)

    def _by_document(self, kept: list[Tensor], num_rows: list[int]) -> list[Tensor]:
        """What each document's rows attend over, [1, kv_heads, T + step·n, d] each."""
        rows = self.rows[-1]
        columns = [kept[0].split(self.lengths, dim=2)]
        for earlier, states in zip(self.rows[1:], kept[1:], strict=True):
            places = torch.searchsorted(earlier, rows)  # a step's rows are among the earlier one's
            columns.append(states.index_select(2, places).split(num_rows, dim=2))
        return [torch.cat(parts, dim=2) for parts in zip(*columns, strict=True)]
