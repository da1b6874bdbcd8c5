"""Where the compiled kernels are kept: one folder for each state of their sources.

Numba keeps a function's machine code as long as the file that defines it stays the same. Our
kernels are made of building blocks in other files, so the folder's name is a digest of them all.

Folder: $NUMBA_CACHE_DIR, else `kernels` in the folder of the fetched models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_lab.targets.smollm2 import cache_folder

SOURCES = (
    "intrinsics.py",
    "linear.py",
    "attention.py",
    "layer.py",
)


def digest_of(folder: Path) -> str:
    """Digest of the kernels' sources in `folder`, 16 hex digits."""
    sources = b"\0".join((folder / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(sources).hexdigest()[:16]


def kernel_folder() -> Path:
    """Where the kernels of this state of their sources are kept, or will be."""
    from numba import config

    own: str = config.CACHE_DIR  # type: ignore[attr-defined]
    base = Path(own) if own else cache_folder() / "kernels"
    return base / digest_of(Path(__file__).parent)


@contextmanager
def use_kernel_folder() -> Iterator[None]:
    """Functions that Numba compiles in this block are kept in, or come from, our folder.

    Where it cannot be written, Numba takes a folder of its own choice.
    """
    from numba import config

    before: str = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(kernel_folder())  # type: ignore[attr-defined]
    try:
        yield
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
