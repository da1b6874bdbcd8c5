"""Files are whole or absent; a folder has one worker, and a crash gives it back."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_lab import files
from eagle_lab.errors import UserError


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep/summary.json"
    files.write_text(path, "old")
    with files.whole(path) as partial:
        partial.write_text("ne")
        assert path.read_text() == "old"
        partial.write_text("new")
    assert path.read_text() == "new"
    assert [entry.name for entry in path.parent.iterdir()] == ["summary.json"]


def test_a_whole_file_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with files.whole(tmp_path / "weights") as partial:
        partial.touch(mode=0o600)
    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    files.write_text(path, "old")

    def fail() -> None:
        with files.whole(path) as partial:
            partial.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_a_folder_is_replaced_as_one(tmp_path: Path) -> None:
    old, new = tmp_path / "drafter", tmp_path / "drafter.partial"
    for folder, name in ((old, "stale.txt"), (new, "fresh.txt")):
        folder.mkdir()
        (folder / name).touch()
    files.commit(old)
    assert [entry.name for entry in old.iterdir()] == ["fresh.txt"]
    assert not new.exists()


def test_a_second_worker_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    first = files.FolderLock(tmp_path)
    with pytest.raises(UserError, match="in use"):
        files.FolderLock(tmp_path)
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    files.FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(
        files.FileLock, "acquire", refuse
    )  # whoever runs the tests may be allowed everything
    with pytest.raises(UserError, match=str(tmp_path)):
        files.FolderLock(tmp_path)


HOLD = """
import pathlib, sys
from eagle_lab import files
lock = files.FolderLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_worker_gives_the_folder_back(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="in use"):
            files.FolderLock(tmp_path)
        worker.kill()
        worker.wait()
    assert (tmp_path / files.LOCK_NAME).exists()
    files.FolderLock(tmp_path).release()
