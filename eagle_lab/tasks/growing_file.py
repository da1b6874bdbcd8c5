"""JSON lines that grow row by row and can be cut off anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_lab.errors import UserError
from eagle_lab.tasks.plain import plain


class GrowingFile:
    """A file to which whole rows are added; a row that does not fit leaves no trace."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._drop_torn_line(path)

    def _drop_torn_line(self, path: Path) -> None:
        if path.is_file():
            content = path.read_bytes()
            self._file.truncate(content.rfind(b"\n") + 1)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        data = (json.dumps(plain(row), ensure_ascii=False) + "\n").encode()
        start = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.truncate(start)
            raise

    def close(self) -> None:
        """Send everything to the disk and close."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON lines file, [] if there is none; a last line without its end is left out.

    Raises:
        UserError: another line is damaged; names it.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no JSON ({error})") from error
    return rows
