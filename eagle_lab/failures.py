"""What went wrong, in one line: the value, what is allowed, the nearest match.

A `UserError` speaks for itself; a full disk and Hydra's and OmegaConf's errors get their own words;
anything else is named with the place in the code it came from. Knows nothing of the bench.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from eagle_lab import catalog
from eagle_lab.errors import UserError, choose

# One line for each job of this process that failed
FAILED_JOBS: list[str] = []

_PACKAGE = Path(__file__).parent
# Hydra's words for a wrong type, and ours
_TYPES = {
    r"could not be converted to Integer": "is not a whole number",
    r"could not be converted to Float": "is not a number",
    r"is not a valid bool": "is neither true nor false",
    r"is not Optional": "must not be null",
    r"Cannot convert 'list' to string": "is a list; one value is needed",
    r"is not a ListConfig": "is one value; a list is needed, as in [2,4]",
}


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


def explain(error: BaseException) -> str | None:
    """One line for an error of composition; None if the error is of another kind."""
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    if isinstance(error, OverrideParseException):
        problem = _one_line(error.message.split("\nSee http")[0])
        return f"cannot read '{error.override}' ({problem}); write key=value or group=option"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}: " if mark else ""
        return f"{where}{error.problem}"
    key_error = next((e for e in _chain(error) if isinstance(e, OmegaConfBaseException)), None)
    if key_error is not None:
        return _key_or_value(key_error) + _where(error)
    if isinstance(error, HydraException):
        return _composition(str(error))
    if isinstance(error, ValueError) and "Config group override" in str(error):
        return f"a group takes the name of one of its files; groups: {', '.join(catalog.groups())}"
    return None


def unknown(value: str, allowed: Iterable[str], what: str) -> str:
    """The line that `choose` would raise."""
    try:
        choose(value, allowed, what)
    except UserError as error:
        return str(error)
    return f"{what} '{value}' cannot stand here"


def _missing_file(error: MissingConfigException) -> str:
    match = re.search(r"Could not (?:find|load) '([^']+)'", str(error))
    if match is None:
        return _one_line(str(error))
    group, _, name = match.group(1).rpartition("/")
    options = error.options or catalog.options(group)
    return unknown(name, options, group or "config file")


def _key_or_value(error: OmegaConfBaseException) -> str:
    full_key = str(error.full_key or error.key)
    message = str(error.msg or error).split("\n")[0]
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and error.parent_node is not None:
        prefix, _, name = full_key.rpartition(".")
        if prefix == "method" and name in catalog.options("method"):
            return catalog.method_not_chosen(name)
        siblings = [str(key) for key in error.parent_node if key != "hydra"]
        return unknown(full_key, [f"{prefix}.{key}" if prefix else key for key in siblings], "key")
    if isinstance(error, InterpolationResolutionError):
        return f"{full_key}: {message}"
    for pattern, words in _TYPES.items():
        if re.search(pattern, message):
            value = re.match(r"Value '(.*?)'", message)
            return f"{full_key}={value.group(1)}: {words}" if value else f"{full_key} {words}"
    return f"{full_key}: {message}"


def _composition(message: str) -> str:
    if match := re.search(r"To append to your default list use \+(\w+)=(\S+)", message):
        return f"write +{match.group(1)}={match.group(2)}, with a plus"
    if match := re.search(r"Multiple values for (\w+)\. .*'override \w+: (\S+)'", message):
        return f"one {match.group(1)} at a time: {match.group(2)} is not the only one given"
    if match := re.match(r"Ambiguous value for argument '(.*?)'", message):
        key = match.group(1).partition("=")[0]
        return (
            f"{match.group(1)}: several values are a sweep, which needs --multirun; "
            f"a list is written {key}=[…]"
        )
    return _one_line(message)


def _where(error: BaseException) -> str:
    match = re.match(r"In '([^']+)'", str(error))
    return f" (in {match.group(1)}.yaml)" if match else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _one_line(text: str) -> str:
    return " ".join(text.split("\nConfig search path")[0].split())
