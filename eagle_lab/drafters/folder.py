"""The files of a drafter folder: their names, and what tells its weights from others."""

from __future__ import annotations

import hashlib
from pathlib import Path

from eagle_lab.errors import UserError

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"


def weights_digest(folder: str | Path) -> str:
    """Hash of the weights' file, 16 hexadecimal digits.

    Raises:
        UserError: `folder` has none.
    """
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"{folder} is no drafter folder: it has no {WEIGHTS_FILE}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
