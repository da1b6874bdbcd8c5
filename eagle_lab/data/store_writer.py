"""Writes a feature store (see store.py) shard by shard, across interruptions.

Until a store is whole its index is `index.json.partial`, rewritten behind each shard; a writer on
the same folder goes on behind the last whole shard. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle_lab import files
from eagle_lab.data.fingerprint import Fingerprint
from eagle_lab.data.store import FORMAT, INDEX, Conversation, file_sha256, read_index
from eagle_lab.errors import UserError


class StoreWriter:
    """Writes a store shard by shard, and takes up an unfinished one where it stopped.

    Args:
        folder: of the store; created.
        fingerprint: what the features depend on.
        feature_dtype: the features are stored in.
        feature_width: F.
        details: further entries of the index (layer ids, norm state, provenance).

    Attributes:
        finished: whether the folder already holds the whole store.

    Raises:
        UserError: the folder holds a store of another fingerprint.
    """

    def __init__(
        self,
        folder: str | Path,
        fingerprint: Fingerprint,
        *,
        feature_dtype: torch.dtype,
        feature_width: int,
        details: dict[str, Any],
    ):
        self.folder = Path(folder)
        self.feature_dtype = feature_dtype
        self._index_path = files.partial_path(self.folder / INDEX)
        self.finished = (self.folder / INDEX).is_file()
        (self.folder / "shards").mkdir(parents=True, exist_ok=True)
        self.index: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": fingerprint.digest,
            "fingerprint_parts": fingerprint.parts,
            "feature_width": feature_width,
            "feature_dtype": str(feature_dtype).removeprefix("torch."),
            **details,
            "num_conversations": 0,
            "num_tokens": 0,
            "num_supervised": 0,
            "num_bytes": 0,
            "shards": [],
        }
        earlier = self.folder / INDEX if self.finished else self._index_path
        if earlier.is_file():
            self._resume(read_index(earlier), fingerprint)

    def _resume(self, earlier: dict[str, Any], fingerprint: Fingerprint) -> None:
        """Take over what is there; a torn shard and all behind it are written again."""
        fingerprint.check_equal(earlier["fingerprint_parts"], f"the store in '{self.folder}'")
        if self.finished:
            self.index = earlier
            return
        for shard in earlier["shards"]:
            path = self.folder / shard["file"]
            if not path.is_file() or file_sha256(path) != shard["sha256"]:
                break
            self._count(shard)

    @property
    def num_shards(self) -> int:
        """Whole shards so far."""
        return len(self.index["shards"])

    @property
    def num_supervised(self) -> int:
        """Tokens of the assistant so far."""
        return int(self.index["num_supervised"])

    def add_shard(self, conversations: Sequence[Conversation], **facts: Any) -> None:
        """Write one shard; it, and then the index that names it, appear whole.

        Args:
            conversations: at least one.
            facts: JSON values about this shard, kept in the index.

        Raises:
            UserError: a feature is too large for the store's dtype.
        """
        for one in conversations:
            rows, tokens = one.features.shape[0], one.tokens.shape[0]
            if rows != tokens - 1 or one.supervised.shape[0] != tokens:
                raise ValueError(
                    f"conversation {one.conversation_id}: {tokens} tokens need {tokens - 1} "
                    f"features and {tokens} mask entries, not {rows} and {len(one.supervised)}"
                )
        name = f"shards/{self.num_shards:05d}.safetensors"
        tensors = {
            "tokens": torch.cat([one.tokens for one in conversations]).to(torch.int32),
            "supervised": torch.cat([one.supervised for one in conversations]),
            "features": torch.cat([one.features for one in conversations]).to(self.feature_dtype),
        }
        if not tensors["features"].isfinite().all():
            raise UserError(
                f"a feature is not finite in {self.feature_dtype}; use data.feature_dtype=bfloat16"
            )
        path = self.folder / name
        with files.whole(path) as partial:
            save_file(tensors, partial, metadata={"fingerprint": self.index["fingerprint"]})
        shard = {
            "file": name,
            "num_bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "num_supervised": int(tensors["supervised"].sum()),
            "lengths": [one.tokens.shape[0] for one in conversations],
            "conversations": [one.conversation_id for one in conversations],
            **facts,
        }
        self._count(shard)
        self._write_index()

    def _count(self, shard: dict[str, Any]) -> None:
        self.index["shards"].append(shard)
        self.index["num_conversations"] += len(shard["lengths"])
        self.index["num_tokens"] += sum(shard["lengths"])
        self.index["num_supervised"] += shard["num_supervised"]
        self.index["num_bytes"] += shard["num_bytes"]

    def _write_index(self) -> None:
        files.write_text(self._index_path, json.dumps(self.index, indent=1) + "\n")

    def finish(self, **entries: Any) -> None:
        """Add `entries` to the index and declare the store whole."""
        if self.finished:
            return
        self.finished = True
        self.index.update(entries)
        self._write_index()
        files.commit(self.folder / INDEX)
