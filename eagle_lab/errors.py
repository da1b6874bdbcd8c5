"""Errors meant for the person at the keyboard: one line that says what to change.

Knows nothing of models or configuration. `run.py` prints a `UserError` as a single line and
exits with code 1; every other exception keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input: the message names the value, what is allowed, and the way out."""


def choose(value: str, allowed: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `allowed`.

    Raises:
        UserError: otherwise, naming `what`, the allowed values and the nearest match.
    """
    names = sorted(allowed)
    if value in names:
        return value
    nearest = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    raise UserError(f"unknown {what} '{value}'; allowed: {', '.join(names)}.{hint}")


class Infeasible(UserError):
    """An infeasible setting, such as a tree with fewer candidates than nodes to keep.

    A sweep reports it as a row of its own instead of stopping.
    """


class Missing(UserError):
    """A method lacks something that was not given: a draft model, a drafter, a package.

    A comparison of all methods can leave such a method out instead of stopping.
    """
