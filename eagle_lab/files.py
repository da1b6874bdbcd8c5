"""Files that are there whole or not at all, and folders that one process at a time works in.

Knows nothing of what the files hold. Work in progress stands in `NAME.partial`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from eagle_lab.errors import UserError

LOCK_NAME = ".lock"


def partial_path(path: Path) -> Path:
    """Where a file or folder grows until it is whole: `NAME.partial` beside it."""
    return path.with_name(f"{path.name}.partial")


def commit(path: Path) -> None:
    """Rename `NAME.partial` to `path`, replacing what was there; a folder is replaced as one."""
    partial = partial_path(path)
    if partial.is_file():
        open_to_others(partial)
    if path.is_dir():
        shutil.rmtree(path)
    partial.replace(path)


def open_to_others(path: Path) -> None:
    """Give a file the permissions of any new file; some libraries write for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield `NAME.partial` to write to; renamed when the block ends, removed when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        commit(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step: readers see the old one or the new one."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


class FolderLock:
    """The right to work in a folder, held until `release` or the end of the process.

    The kernel drops it with the process, however that ends, so a crash leaves nothing to clean up.

    Raises:
        UserError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / LOCK_NAME, timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"{folder} is in use by another process; wait for it or take another folder"
            ) from None
        except PermissionError:
            raise UserError(f"{folder} cannot be written; take another folder") from None

    def release(self) -> None:
        """Give the folder back."""
        if self._lock.is_locked:
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
