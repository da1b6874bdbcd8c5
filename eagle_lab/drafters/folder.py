"""The files of a drafter folder: their names, and what tells its weights from others."""

from __future__ import annotations

import hashlib
from pathlib import Path

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"


def weights_digest(folder: str | Path) -> str:
    """Hash of the weights' file, 16 hexadecimal digits."""
    with (Path(folder) / WEIGHTS_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
