"""A feature store of twelve short conversations with a target's own features."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle_lab.data.store import Conversation, StoreWriter
from eagle_lab.targets.fingerprint import Fingerprint
from eagle_lab.targets.target import Target


def store_of(target: Target, folder: Path) -> Path:
    """The second half of each conversation is supervised."""
    generator = torch.Generator().manual_seed(0)
    conversations = []
    for number in range(12):
        tokens = torch.randint(3, 60, (24,), generator=generator)
        hidden = target.prefill([tokens.tolist()], target.new_cache(1)).features["top"][0, :-1]
        supervised = torch.arange(24) >= 12
        conversations.append(Conversation(tokens, supervised, {"top": hidden}, f"c{number}"))
    writer = StoreWriter(
        folder,
        Fingerprint({"target": target.fingerprint, "layers": None}),
        feature_dtype=torch.float16,
        feature_widths={"top": target.feature_width("top")},
        details={},
    )
    writer.add_shard(conversations)
    writer.finish()
    return folder
