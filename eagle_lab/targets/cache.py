"""Key-value cache for tree decoding: every row has its own length, and a path can be kept.

    slots      0 ... len-1 | len ... len+M-1 | free
               committed   | tree under way  |

A pass (`tree_pass`) writes its columns after the committed prefix of each row and attends to the
prefix and to the tree slots it may see. `keep` moves the slots of the accepted path right after
the prefix and counts them as committed; the next pass overwrites everything after them.

Shapes: L layers, B rows, C capacity, kv heads, d head width, N columns of a pass, S attended slots.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.targets.cpu import ops

_ROUND = 64


class TreeCache:
    """Keys and values of all layers.

    Attributes:
        store: [L, 2, B, kv, C, d], allocated at the first write; None before.
        lengths: [B] committed slots of each row.
        max_length: their maximum, on the host.
        fast: whether to write and attend by the CPU kernels (`cpu.ops`) where they apply.
        attention: how passes attend otherwise, see `Target`.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        device: torch.device | str = "cpu",
        *,
        fast: bool = False,
        attention: str = "auto",
    ):
        self.num_layers = num_layers
        self.fast = fast
        self.attention = attention
        self.lengths = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.max_length = 0
        self._rows = torch.arange(num_rows, device=device)
        self.store: Tensor | None = None

    def over(self, store: Tensor, lengths: Tensor, max_length: int) -> TreeCache:
        """A cache of the same kind that works in `store`, with `lengths` up to `max_length`."""
        other = copy.copy(self)
        other.lengths, other.max_length, other.store = lengths, max_length, store
        other._rows = torch.arange(len(lengths), device=lengths.device)
        return other

    def move_to(self, store: Tensor) -> None:
        """Continue in `store`, which has at least as many rows and room for every slot in use."""
        assert self.store is not None, "nothing to move"
        rows, capacity = len(self.lengths), min(self.store.shape[4], store.shape[4])
        store[:, :, :rows, :, :capacity] = self.store[..., :capacity, :]
        self.store = store[:, :, :rows]

    def copy_from(self, other: TreeCache) -> None:
        """Hold what `other`, a cache of the same kind, holds."""
        self.lengths, self.max_length = other.lengths.clone(), other.max_length
        self._rows = other._rows
        self.store = None if other.store is None else other.store.clone()

    def write(self, layer: int, key: Tensor, value: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Put `key`, `value` [B, kv, N, d] at slots len + offset of `layer`.

        Returns keys and values [B, kv, S, d] of the slots 0 ... max_length + offset + N - 1;
        the mask says which of them a row sees.
        """
        num_columns = key.shape[2]
        attended = self.room(layer, offset + num_columns, key)
        if self.fast and ops.suits(key.device, key.dtype):
            ops.store(key, value, attended, self.lengths, offset)
            return attended[0], attended[1]
        columns = torch.arange(offset, offset + num_columns, device=key.device)
        slots = self.lengths[:, None] + columns
        rows = self._rows[:, None]
        attended[0, rows, :, slots] = key.transpose(1, 2)
        attended[1, rows, :, slots] = value.transpose(1, 2)
        return attended[0], attended[1]

    def room(self, layer: int, num_slots: int, like: Tensor) -> Tensor:
        """Keys and values [2, B, kv, S, d] of `layer`, with `num_slots` tree slots in every row.

        An empty cache takes shape, dtype and device from `like` [B, kv, ..., d].
        """
        end = self.max_length + num_slots
        return self.reserve(end, like)[layer, :, :, :, :end]

    def reserve(self, capacity: int, like: Tensor) -> Tensor:
        """The store with room for `capacity` slots; growing copies what is committed.

        `like` [..., kv, ..., d] as in `room`.
        """
        store = self.store
        if store is not None and store.shape[4] >= capacity:
            return store
        if store is not None:
            capacity = max(capacity, store.shape[4] * 3 // 2)
        capacity = -(-capacity // _ROUND) * _ROUND
        num_kv, width = like.shape[1], like.shape[-1]
        shape = (self.num_layers, 2, len(self.lengths), num_kv, capacity, width)
        # Zeros, not garbage: masked slots take part in the products, and 0 * NaN is NaN.
        grown = torch.zeros(shape, dtype=like.dtype, device=like.device)
        if store is not None:
            grown[..., : store.shape[4], :] = store
        self.store = grown
        return grown

    def advance(self, counts: Tensor, max_length: int | None = None) -> None:
        """Commit the first `counts` [B] tree slots of each row, where they are.

        `max_length` is the largest length then; without it a host sync fetches it.
        """
        self.lengths = self.lengths + counts
        if max_length is None:
            max_length = int(self.lengths.max()) if len(self.lengths) else 0
        self.max_length = max_length

    def keep(
        self,
        path: Tensor,
        counts: Tensor,
        *,
        moved: bool = True,
        max_length: int | None = None,
    ) -> None:
        """Commit the tree slots `path` [B, A] of each row, the first `counts` [B] of them.

        A is at most the number of columns of the last pass. The moved slots go through a
        temporary, so a path may overlap its destination; entries after `counts` are ignored.

        Args:
            path: [B, A].
            counts: [B].
            moved: False if every path stays where it is.
            max_length: see `advance`.
        """
        if self.store is not None and moved:
            steps = torch.arange(path.shape[1], device=path.device)
            source = torch.where(steps < counts[:, None], path, steps) + self.lengths[:, None]
            target = steps + self.lengths[:, None]
            rows = self._rows[:, None]
            self.store[:, :, rows, :, target] = self.store[:, :, rows, :, source]
        self.advance(counts, max_length)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows, in the order given; rows that keep their place cost nothing.

        The memory of dropped rows is given back when the cache next grows.
        """
        index = torch.as_tensor(rows, dtype=torch.long, device=self.lengths.device)
        self.lengths = self.lengths[index]
        self.max_length = int(self.lengths.max()) if len(rows) else 0
        self._rows = torch.arange(len(rows), device=self.lengths.device)
        if self.store is not None:
            moved = [place for place, row in enumerate(rows) if place != row]
            if moved:
                self.store[:, :, moved] = self.store[:, :, index[moved]]
            self.store = self.store[:, :, : len(rows)]
