"""Several feature stores read as one: captures of several prompt sources, processes or machines.

Conversations come store after store. Target, layers and chat template of all must be equal;
prompts, seeds, sampling and precision may differ, that is what several captures are for.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from eagle_lab.data.fingerprint import Fingerprint
from eagle_lab.data.store import Conversation, FeatureStore
from eagle_lab.errors import UserError

MUST_BE_EQUAL = ("target", "layers", "norm_state", "chat_template")


class JoinedStore(torch.utils.data.Dataset[Conversation]):
    """The conversations of one store or of several, read-only.

    Attributes:
        stores: in order.

    Raises:
        UserError: stores whose features do not belong together (both values named).
    """

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        self.stores = list(stores)
        self._starts = [0, *itertools.accumulate(len(store) for store in self.stores)]
        first = self.stores[0]
        for store in self.stores[1:]:
            for part in MUST_BE_EQUAL:
                values = [one.fingerprint.parts.get(part) for one in (first, store)]
                if values[0] != values[1]:
                    raise UserError(
                        f"feature stores '{first.folder}' and '{store.folder}' cannot be joined: "
                        f"{part} is {values[0]} in one, {values[1]} in the other"
                    )

    @classmethod
    def open(cls, folders: Sequence[str | Path]) -> JoinedStore:
        """Open each folder, see `FeatureStore.open`."""
        return cls([FeatureStore.open(folder) for folder in folders])

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, i: int) -> Conversation:
        """Conversation `i`, see `FeatureStore`."""
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        number = bisect.bisect_right(self._starts, i) - 1
        return self.stores[number][i - self._starts[number]]

    def lengths(self) -> list[int]:
        """Tokens of every conversation."""
        return [length for store in self.stores for length in store.lengths()]

    @property
    def folder(self) -> str:
        """The folders' names, for messages."""
        return ", ".join(str(store.folder) for store in self.stores)

    @property
    def feature_width(self) -> int:
        """F."""
        return self.stores[0].feature_width

    @property
    def fingerprint(self) -> Fingerprint:
        """What the features of the first store depend on; `MUST_BE_EQUAL` holds for all."""
        return self.stores[0].fingerprint

    @property
    def digest(self) -> str:
        """Hash of which conversations there are, with which features."""
        return hashlib.sha256("".join(s.digest for s in self.stores).encode()).hexdigest()[:16]
