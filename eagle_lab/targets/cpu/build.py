"""The folder of the compiled kernels: one for each state of their sources.

Numba keeps a function's machine code as long as the file that defines it stays the same. Our
kernels are made of building blocks in other files, so the folder's name is a digest of them all.
It is set while `ops.kernels` imports the kernel modules; whoever imports one of them elsewhere
compiles into a folder of Numba's choice.

Folder: $NUMBA_CACHE_DIR, else `kernels` in the folder of the fetched models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_lab.targets.smollm2 import cache_folder

SOURCES = ("intrinsics.py", "linear.py", "attention.py", "layer.py")


def digest_of(folder: Path) -> str:
    """Digest of the kernels' sources in `folder`, 16 hex digits."""
    sources = b"\0".join((folder / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(sources).hexdigest()[:16]


def kernel_folder() -> Path:
    """Folder of the kernels in the state of their sources, whether or not it exists yet."""
    from numba import config

    chosen: str = config.CACHE_DIR  # type: ignore[attr-defined]
    base = Path(chosen) if chosen else cache_folder() / "kernels"
    return base / digest_of(Path(__file__).parent)


@contextmanager
def use_kernel_folder() -> Iterator[None]:
    """Numba keeps what it compiles in this block in `kernel_folder`, or takes it from there.

    Where it cannot be written, Numba takes a folder of its own choice.
    """
    from numba import config

    before: str = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(kernel_folder())  # type: ignore[attr-defined]
    try:
        yield
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
