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
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle_lab import files
from eagle_lab.data.fingerprint import Fingerprint
from eagle_lab.errors import UserError

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
        features: [T - 1, F]; row i belongs to token i. In the store's dtype when read.
        conversation_id: of the question it answers.
    """

    tokens: Tensor
    supervised: Tensor
    features: Tensor
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
            features=file.get_slice("features")[first_row : first_row + end - start - 1].clone(),
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
    def feature_width(self) -> int:
        """F."""
        return int(self.index["feature_width"])

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
