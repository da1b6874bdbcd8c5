"""Files that are there whole or not at all, and folders that one process at a time works in.

Knows nothing of what the files hold. Work in progress stands in `NAME.partial`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        UserError: another process holds it, which is named, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        while True:
            try:
                self._file = self._path.open("a+", encoding="utf-8")
            except PermissionError:
                raise UserError(f"{folder} cannot be written; take another folder") from None
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                holder = self._file.read().strip() or "unknown"
                self._file.close()
                raise UserError(
                    f"{folder} is in use by process {holder}; wait for it or take another folder"
                ) from None
            if self._is_current():
                break
            self._file.close()
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def _is_current(self) -> bool:
        """Whether the locked file still has its name: its last holder may just have removed it."""
        try:
            return os.fstat(self._file.fileno()).st_ino == self._path.stat().st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the folder back."""
        if not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.close()
