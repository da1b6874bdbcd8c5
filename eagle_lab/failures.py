"""What went wrong, in one line, whatever kind of error it is.

A `UserError` speaks for itself; a full disk and errors of composition get their own words; anything
else is named with the place in the code it came from.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from pathlib import Path

from eagle_lab.config_errors import explain
from eagle_lab.errors import UserError

# One line for each job of this process that failed
FAILED_JOBS: list[str] = []

_PACKAGE = Path(__file__).parent


def one_line(error: BaseException) -> str:
    """The line that is printed for `error`."""
    if isinstance(error, UserError):
        return str(error)
    full = next((e for e in _chain(error) if _disk_is_full(e)), None)
    if full is not None:
        name = getattr(full, "filename", None)
        where = f" while writing {name}" if name else ""
        return f"the disk is full{where}: make room, then the same command goes on where it stopped"
    composition = explain(error)
    if composition is not None:
        return composition
    message = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {message}{_place(error)} (HYDRA_FULL_ERROR=1 shows more)"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not ours:
        return ""
    file = Path(ours[-1].filename).relative_to(_PACKAGE.parent)
    return f" at {file}:{ours[-1].lineno}"


def _disk_is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # Libraries in other languages pass the system's words on
    return "No space left on device" in str(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
