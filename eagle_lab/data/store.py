"""Feature store: conversations with the target's features, in memory-mapped safetensors shards.

    FOLDER/index.json                   fingerprint, features, layers, dtype, counts, checksums
    FOLDER/shards/00000.safetensors     tokens, supervised, each feature of some conversations
    FOLDER/answers.safetensors          the token ids alone (see answers.py)

A conversation of T tokens has T - 1 features, for its last token was never fed to the target; no
row of a drafter's training needs that one:

    token      t_0  t_1  t_2  ...  t_{T-2}  t_{T-1}
    feature    f_0  f_1  f_2  ...  f_{T-2}
    row i: input (f_i, t_{i+1}), feature label f_{i+1}, token label t_{i+2}

Sizes of shards are checked when a store is opened, the checksum of each before its first use. Until
a store is whole its index is `index.json.partial`, rewritten after each shard; a writer on the same
folder continues after the last whole shard. Several stores (captures of several prompt sources,
processes or machines) read as one.

Shapes: T tokens of a conversation, F feature width. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from eagle_lab import files
from eagle_lab.errors import UserError
from eagle_lab.targets.features import FUSED, TOP
from eagle_lab.targets.fingerprint import Fingerprint

FORMATS = (1, 2)  # a store of format 1 holds one feature, which its layers tell
INDEX = "index.json"


@dataclass(frozen=True)
class Conversation:
    """One stored conversation.

    Attributes:
        tokens: [T] int64, prompt and answers of all turns.
        supervised: [T] bool, True on the tokens the assistant produced.
        features: by name, [T - 1, F]; row i belongs to token i. In the store's dtype when read.
        conversation_id: of the question it answers.
    """

    tokens: Tensor
    supervised: Tensor
    features: dict[str, Tensor]
    conversation_id: str


class Shard(Dataset[Conversation]):
    """The conversations of one file, which stays memory-mapped; what is read of it are copies.

    Args:
        folder: of the store.
        entry: the index's, on this shard.
        tensors: name of the tensor that holds a feature, by the feature's name.
    """

    def __init__(self, folder: Path, entry: dict[str, Any], tensors: dict[str, str]) -> None:
        self.path = folder / entry["file"]
        self.entry = entry
        self._tensors = tensors
        self._starts = [0, *itertools.accumulate(entry["lengths"])]
        self._verified = False
        self._file: Any = None

    def check_size(self) -> None:
        """UserError unless the file is there in full size."""
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != self.entry["num_bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"shard '{self.path}' {found}, its index says {self.entry['num_bytes']} bytes; "
                "capture this store again"
            )

    def verify(self) -> None:
        """Compare the file with its checksum, once; UserError if it differs."""
        if not self._verified and (found := file_sha256(self.path)) != self.entry["sha256"]:
            raise UserError(
                f"shard '{self.path}' is damaged: its sha256 is {found[:16]}..., the index says "
                f"{self.entry['sha256'][:16]}...; capture this store again"
            )
        self._verified = True

    def __len__(self) -> int:
        return len(self.entry["lengths"])

    def __getitem__(self, i: int) -> Conversation:
        if self._file is None:
            self.verify()
            try:
                self._file = safe_open(self.path, framework="pt")
            except SafetensorError as error:
                raise UserError(f"shard '{self.path}' is no safetensors file: {error}") from error
        start, end = self._starts[i : i + 2]
        rows = slice(start - i, end - i - 1)  # each conversation has one row less than tokens
        return Conversation(
            tokens=self._file.get_slice("tokens")[start:end].long(),
            supervised=self._file.get_slice("supervised")[start:end].clone(),
            features={
                name: self._file.get_slice(tensor)[rows].clone()
                for name, tensor in self._tensors.items()
            },
            conversation_id=str(self.entry["conversations"][i]),
        )

    def __getstate__(self) -> dict[str, Any]:
        """The open file stays in this process; a data loader's worker opens its own."""
        return {**self.__dict__, "_file": None}


class FeatureStore(ConcatDataset[Conversation]):
    """A finished store, read-only; index it for one `Conversation`.

    Attributes:
        folder: of the store.
        index: what index.json holds.
        shards: in order.
    """

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        tensors = {name: _tensor_of(name, index) for name in index["features"]}
        self.folder, self.index = folder, index
        self.shards = [Shard(folder, entry, tensors) for entry in index["shards"]]
        super().__init__(self.shards)

    @classmethod
    def open(cls, folder: str | Path) -> FeatureStore:
        """Open a store; every shard must be there in full size.

        Raises:
            UserError: no store, an unfinished one, or a missing or truncated shard (named).
        """
        folder = Path(folder)
        if not (folder / INDEX).is_file():
            if files.partial_path(folder / INDEX).is_file():
                raise UserError(
                    f"the feature store '{folder}' is not finished; run its capture again with "
                    f"output_dir={folder} and it goes on where it stopped"
                )
            raise UserError(f"no feature store at '{folder}' (no {INDEX}); make one with capture")
        store = cls(folder, read_index(folder / INDEX))
        for shard in store.shards:
            shard.check_size()
        return store

    def __iter__(self) -> Iterator[Conversation]:
        return (self[i] for i in range(len(self)))

    def lengths(self) -> list[int]:
        """Tokens of every conversation, in order, without reading a shard."""
        return [length for shard in self.shards for length in shard.entry["lengths"]]

    @property
    def digest(self) -> str:
        """Hash of what the features depend on and of which conversations there are."""
        text = "".join(shard.entry["sha256"] for shard in self.shards) + self.index["fingerprint"]
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def feature_widths(self) -> dict[str, int]:
        """F of each feature that is stored, by name."""
        return dict(self.index["features"])

    @property
    def fingerprint(self) -> Fingerprint:
        """What the features depend on."""
        return Fingerprint(self.index["fingerprint_parts"])


class JoinedStore(ConcatDataset[Conversation]):
    """The conversations of one store or of several, store after store, read-only.

    Target, layers and chat template of all must be equal; prompts, seeds, sampling and precision
    may differ, that is what several captures are for.

    Attributes:
        stores: in order.

    Raises:
        UserError: stores whose features do not belong together (both values named).
    """

    MUST_BE_EQUAL = ("target", "layers", "norm_state", "chat_template")

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        super().__init__(stores)
        self.stores = list(stores)
        first = self.stores[0]
        for store, part in itertools.product(self.stores[1:], self.MUST_BE_EQUAL):
            there, here = (one.fingerprint.parts.get(part) for one in (first, store))
            if there != here:
                raise UserError(
                    f"feature stores '{first.folder}' and '{store.folder}' cannot be joined: "
                    f"{part} is {there} in one, {here} in the other"
                )

    @classmethod
    def open(cls, folders: Sequence[str | Path]) -> JoinedStore:
        """Open each folder, see `FeatureStore.open`."""
        return cls([FeatureStore.open(folder) for folder in folders])

    def lengths(self) -> list[int]:
        """Tokens of every conversation."""
        return [length for store in self.stores for length in store.lengths()]

    @property
    def folder(self) -> str:
        """The folders' names, for messages."""
        return ", ".join(str(store.folder) for store in self.stores)

    @property
    def feature_widths(self) -> dict[str, int]:
        """F of each feature, by name; equal in all stores, as their layers are."""
        return self.stores[0].feature_widths

    @property
    def fingerprint(self) -> Fingerprint:
        """What the features of the first store depend on; `MUST_BE_EQUAL` holds for all."""
        return self.stores[0].fingerprint

    @property
    def digest(self) -> str:
        """Hash of which conversations there are, with which features."""
        return hashlib.sha256("".join(s.digest for s in self.stores).encode()).hexdigest()[:16]


def read_index(path: Path) -> dict[str, Any]:
    """The index as a dict; UserError if it is torn or of another format."""
    try:
        index = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"the store's index '{path}' cannot be read: {error}") from error
    if index.get("format") not in FORMATS:
        raise UserError(
            f"'{path}' has format {index.get('format')!r}; this version reads {FORMATS}"
        )
    if index["format"] == 1:
        index["features"] = {FUSED if index.get("layers") else TOP: index["feature_width"]}
    return index


def _tensor_of(feature: str, index: dict[str, Any]) -> str:
    return "features" if index["format"] == 1 else f"features.{feature}"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class StoreWriter:
    """Writes a store shard by shard, and takes up an unfinished one where it stopped.

    Args:
        folder: of the store; created.
        fingerprint: what the features depend on.
        feature_dtype: the features are stored in.
        feature_widths: F of each feature, by name.
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
        feature_widths: dict[str, int],
        details: dict[str, Any],
    ):
        self.folder = Path(folder)
        self.feature_dtype = feature_dtype
        self.finished = (self.folder / INDEX).is_file()
        self._partial = files.partial_path(self.folder / INDEX)
        (self.folder / "shards").mkdir(parents=True, exist_ok=True)
        self.index: dict[str, Any] = {
            "format": FORMATS[-1],
            "fingerprint": fingerprint.digest,
            "fingerprint_parts": fingerprint.parts,
            "features": feature_widths,
            "feature_dtype": str(feature_dtype).removeprefix("torch."),
            **details,
            "num_conversations": 0,
            "num_tokens": 0,
            "num_supervised": 0,
            "num_bytes": 0,
            "shards": [],
        }
        earlier = self.folder / INDEX if self.finished else self._partial
        if earlier.is_file():
            self._resume(read_index(earlier), fingerprint)

    def _resume(self, earlier: dict[str, Any], fingerprint: Fingerprint) -> None:
        """Take over what is there; a torn shard and all after it are written again."""
        fingerprint.check_equal(earlier["fingerprint_parts"], f"the store in '{self.folder}'")
        if self.finished:
            self.index = earlier
            return
        if earlier["format"] == 1:  # its further shards are like its first ones
            self.index |= {key: earlier[key] for key in ("format", "feature_width")}
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
        features = self.index["features"]
        for one in conversations:
            found = {name: len(kept) for name, kept in one.features.items()}
            num = len(one.tokens)
            if found != dict.fromkeys(features, num - 1) or len(one.supervised) != num:
                raise ValueError(
                    f"conversation {one.conversation_id}: {num} tokens need {num - 1} rows of each "
                    f"of {list(features)}, not {found}, and as many mask entries"
                )
        tensors = {
            "tokens": torch.cat([one.tokens for one in conversations]).to(torch.int32),
            "supervised": torch.cat([one.supervised for one in conversations]),
        }
        for name in features:
            kept = torch.cat([one.features[name] for one in conversations]).to(self.feature_dtype)
            if not kept.isfinite().all():
                raise UserError(
                    f"a feature is not finite in {self.feature_dtype}; use "
                    "data.feature_dtype=bfloat16"
                )
            tensors[_tensor_of(name, self.index)] = kept
        file = f"shards/{self.num_shards:05d}.safetensors"
        path = self.folder / file
        with files.whole(path) as partial:
            save_file(tensors, partial, metadata={"fingerprint": self.index["fingerprint"]})
        shard = {
            "file": file,
            "num_bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "num_supervised": int(tensors["supervised"].sum()),
            "lengths": [len(one.tokens) for one in conversations],
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
        files.write_text(self._partial, json.dumps(self.index, indent=1) + "\n")

    def finish(self, **entries: Any) -> None:
        """Add `entries` to the index and declare the store whole."""
        if self.finished:
            return
        self.finished = True
        self.index.update(entries)
        self._write_index()
        files.commit(self.folder / INDEX)
