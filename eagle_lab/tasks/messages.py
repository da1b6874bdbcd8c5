"""What the library's loggers say, shown on the terminal while a task runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shown() -> Iterator[None]:
    """Print the package's messages of level INFO and above, a line each, until the block ends."""
    logger, handler = logging.getLogger("eagle_lab"), logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
