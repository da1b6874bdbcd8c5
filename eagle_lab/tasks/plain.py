"""Values as files hold them: NumPy and torch scalars, paths and NaN have plain counterparts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """`value` in types that JSON knows; NaN and infinities become None.

    Raises:
        TypeError: there is no counterpart.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)
        ]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and torch
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a file: {value!r}")


def cell(value: Any) -> Any:
    """`value` as a cell of a table: empty for None and NaN, true/false for booleans."""
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value
