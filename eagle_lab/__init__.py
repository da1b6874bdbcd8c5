"""A research bench for EAGLE speculative decoding.

`import eagle_lab` is cheap: the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_lab.api import generate, stream
    from eagle_lab.drafters.checkpoint import load_drafter
    from eagle_lab.engine.loop import decode
    from eagle_lab.engine.sampling import Sampling
    from eagle_lab.errors import UserError
    from eagle_lab.targets.load import load_target

__version__ = "0.1.0"

__all__ = [
    "Sampling",
    "UserError",
    "__version__",
    "decode",
    "generate",
    "load_drafter",
    "load_target",
    "stream",
]

_HOMES = {
    "Sampling": "eagle_lab.engine.sampling",
    "UserError": "eagle_lab.errors",
    "decode": "eagle_lab.engine.loop",
    "generate": "eagle_lab.api",
    "load_drafter": "eagle_lab.drafters.checkpoint",
    "load_target": "eagle_lab.targets.load",
    "stream": "eagle_lab.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eagle_lab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
