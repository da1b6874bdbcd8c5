"""Feature store: conversations with the target's features, in memory-mapped safetensors shards.

    FOLDER/index.json                   fingerprint, layers, norm state, dtype, counts, checksums
    FOLDER/shards/00000.safetensors     tokens, supervised, features of some conversations
    FOLDER/answers.safetensors          the token ids alone (see answers.py)

A conversation of T tokens has T - 1 features, for its last token was never fed to the target; no
row of a drafter's training needs that one:

    token      t_0  t_1  t_2  ...  t_{T-2}  t_{T-1}
    feature    f_0  f_1  f_2  ...  f_{T-2}
    row i: input (f_i, t_{i+1}), feature label f_{i+1}, token label t_{i+2}

Sizes of shards are checked when a store is opened, the checksum of each before its first use.
Written by store_writer.py.

Shapes: T tokens of a conversation, F feature width. Knows nothing of models.

Writes a feature store (see store.py) shard by shard, across interruptions.

Until a store is whole its index is `index.json.partial`, rewritten after each shard; a writer on
the same folder continues after the last whole shard. Knows nothing of models.

Several feature stores read as one: captures of several prompt sources, processes or machines.

Conversations come store after store. Target, layers and chat template of all must be equal;
prompts, seeds, sampling and precision may differ, that is what several captures are for.
"""

from __future__ import annotations

import bisect
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

from eagle_lab import files
from eagle_lab.errors import UserError
from eagle_lab.targets.features import FUSED, TOP
from eagle_lab.targets.fingerprint import Fingerprint

FORMAT = 1
INDEX = "index.json"
TOP_NORM = "post_final_norm"  # the state that enters the LM head (EAGLE-1)
RESIDUAL = "un_normed_layer_inputs"  # hidden_states[ids], concatenated (EAGLE-3)


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


class FeatureStore(torch.utils.data.Dataset[Conversation]):
    """A finished store, read-only; index it for one `Conversation`."""

    def __init__(self, folder: Path, index: dict[str, Any]):
        self.folder = folder
        self.index = index
        self._shards: list[dict[str, Any]] = index["shards"]
        self._starts = [0]  # first conversation of each shard, and the total
        self._offsets: list[list[int]] = []  # first token of each conversation in its shard
        for shard in self._shards:
            self._starts.append(self._starts[-1] + len(shard["lengths"]))
            offsets = [0]
            for length in shard["lengths"]:
                offsets.append(offsets[-1] + length)
            self._offsets.append(offsets)
        self._keys = {name: _key(name, index) for name in feature_widths(index)}
        self._verified: set[int] = set()
        self._open: dict[int, Any] = {}

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
        for shard in store._shards:
            path = folder / shard["file"]
            size = path.stat().st_size if path.is_file() else None
            if size != shard["num_bytes"]:
                found = "is missing" if size is None else f"has {size} bytes"
                raise UserError(
                    f"shard '{path}' {found}, its index says {shard['num_bytes']} bytes; "
                    "capture this store again"
                )
        return store

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Conversation]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Conversation:
        """Conversation `i`; its tensors are copies, the file stays memory-mapped.

        Raises:
            UserError: the shard's checksum is not the index's.
        """
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        number = bisect.bisect_right(self._starts, i) - 1
        place = i - self._starts[number]
        start, end = self._offsets[number][place : place + 2]
        file = self._shard(number)
        first_row = start - place  # each conversation before this one has one row less than tokens
        return Conversation(
            tokens=file.get_slice("tokens")[start:end].long(),
            supervised=file.get_slice("supervised")[start:end].clone(),
            features={
                name: file.get_slice(key)[first_row : first_row + end - start - 1].clone()
                for name, key in self._keys.items()
            },
            conversation_id=str(self._shards[number]["conversations"][place]),
        )

    def lengths(self) -> list[int]:
        """Tokens of every conversation, in order, without reading a shard."""
        return [length for shard in self._shards for length in shard["lengths"]]

    def conversation_ids(self) -> list[str]:
        """Id of every conversation, in order, without reading a shard."""
        return [str(name) for shard in self._shards for name in shard["conversations"]]

    @property
    def digest(self) -> str:
        """Hash of what the features depend on and of which conversations there are."""
        text = "".join(shard["sha256"] for shard in self._shards) + self.index["fingerprint"]
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def feature_widths(self) -> dict[str, int]:
        """F of each feature that is stored, by name."""
        return feature_widths(self.index)

    @property
    def fingerprint(self) -> Fingerprint:
        """What the features depend on."""
        return Fingerprint(self.index["fingerprint_parts"])

    def verify(self) -> None:
        """Check the checksum of every shard now; UserError names the first bad one."""
        for number in range(len(self._shards)):
            self._check_shard(number)

    def _check_shard(self, number: int) -> None:
        if number in self._verified:
            return
        shard = self._shards[number]
        path = self.folder / shard["file"]
        found = file_sha256(path)
        if found != shard["sha256"]:
            raise UserError(
                f"shard '{path}' is damaged: its sha256 is {found[:16]}..., the index says "
                f"{shard['sha256'][:16]}...; capture this store again"
            )
        self._verified.add(number)

    def _shard(self, number: int) -> Any:
        """The opened, checked shard."""
        if number not in self._open:
            self._check_shard(number)
            path = self.folder / self._shards[number]["file"]
            try:
                self._open[number] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise UserError(f"shard '{path}' is no safetensors file: {error}") from error
        return self._open[number]

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay in this process; a data loader's worker opens its own."""
        return {**self.__dict__, "_open": {}}


def feature_widths(index: dict[str, Any]) -> dict[str, int]:
    """F of each feature of a store; early stores hold one, which their layers tell."""
    if "feature_width" in index:
        return {FUSED if index.get("layers") else TOP: int(index["feature_width"])}
    return {name: int(width) for name, width in index["features"].items()}


def _key(name: str, index: dict[str, Any]) -> str:
    """Name of a feature's tensor in the shards."""
    return "features" if "feature_width" in index else f"features.{name}"


def read_index(path: Path) -> dict[str, Any]:
    """The index as a dict; UserError if it is torn or of another format."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the store's index '{path}' cannot be read: {error}") from error
    if index.get("format") != FORMAT:
        raise UserError(f"'{path}' has format {index.get('format')!r}, this version reads {FORMAT}")
    return dict(index)


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
        self._index_path = files.partial_path(self.folder / INDEX)
        self.finished = (self.folder / INDEX).is_file()
        (self.folder / "shards").mkdir(parents=True, exist_ok=True)
        self.index: dict[str, Any] = {
            "format": FORMAT,
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
        earlier = self.folder / INDEX if self.finished else self._index_path
        if earlier.is_file():
            self._resume(read_index(earlier), fingerprint)

    def _resume(self, earlier: dict[str, Any], fingerprint: Fingerprint) -> None:
        """Take over what is there; a torn shard and all after it are written again."""
        fingerprint.check_equal(earlier["fingerprint_parts"], f"the store in '{self.folder}'")
        if self.finished:
            self.index = earlier
            return
        if "feature_width" in earlier:  # begun by an early version: its shards are named alike
            self.index.pop("features")
            self.index["feature_width"] = earlier["feature_width"]
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
        names = list(feature_widths(self.index))
        for one in conversations:
            tokens, rows = len(one.tokens), {name: len(kept) for name, kept in one.features.items()}
            if rows != dict.fromkeys(names, tokens - 1) or len(one.supervised) != tokens:
                raise ValueError(
                    f"conversation {one.conversation_id}: {tokens} tokens need {tokens - 1} rows "
                    f"of each of {names} and {tokens} mask entries, not {rows} and "
                    f"{len(one.supervised)}"
                )
        name = f"shards/{self.num_shards:05d}.safetensors"
        tensors = {
            "tokens": torch.cat([one.tokens for one in conversations]).to(torch.int32),
            "supervised": torch.cat([one.supervised for one in conversations]),
        }
        for feature in names:
            kept = torch.cat([one.features[feature] for one in conversations]).to(
                self.feature_dtype
            )
            tensors[_key(feature, self.index)] = kept
            if kept.isfinite().all():
                continue
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
    def feature_widths(self) -> dict[str, int]:
        """F of each feature that all stores hold, by name."""
        first, *others = (store.feature_widths for store in self.stores)
        return {name: width for name, width in first.items() if all(name in one for one in others)}

    @property
    def fingerprint(self) -> Fingerprint:
        """What the features of the first store depend on; `MUST_BE_EQUAL` holds for all."""
        return self.stores[0].fingerprint

    @property
    def digest(self) -> str:
        """Hash of which conversations there are, with which features."""
        return hashlib.sha256("".join(s.digest for s in self.stores).encode()).hexdigest()[:16]
