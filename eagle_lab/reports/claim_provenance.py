"""What of a run's provenance may be published: no host, no account, no absolute path."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

KEPT = (
    *("task", "status", "start", "end", "command", "git_commit", "git_dirty"),
    *("device", "device_name", "torch_threads", "dtype", "threads", "seed"),
    *("prompts", "prompts_sha256", "target", "target_fingerprint"),
)
KEPT_OF_MACHINE = ("cpu", "num_cpus")
KEPT_OF_RESUMPTION = ("start", "git_commit", "git_dirty")
# A path that leaves the working folder: `/a/b`, `~/a`, `../a`, at the start or behind `=`, `[`, …
_PATH = re.compile(r"""(?<![^\s=,\[{('"])(?:\.\.|~[^\s/]*)?/[^\s,\]})'"]*""")


def publishable(provenance: dict[str, Any]) -> dict[str, Any]:
    """The parts of a provenance.json that say how to repeat a run, with paths made relative."""
    kept = {name: provenance[name] for name in KEPT if name in provenance}
    machine = provenance.get("machine") or {}
    kept["machine"] = {name: machine[name] for name in KEPT_OF_MACHINE if name in machine}
    kept["versions"] = provenance.get("versions") or {}
    if provenance.get("resumed"):  # not all of its results are of the commit it began at
        kept["resumed"] = [
            {name: start[name] for name in KEPT_OF_RESUMPTION if name in start}
            for start in provenance["resumed"]
        ]
    cleaned = without_paths(kept)
    assert isinstance(cleaned, dict)
    return cleaned


def without_paths(value: Any) -> Any:
    """`value` with every outside path in its texts shortened; see `shortened`."""
    if isinstance(value, dict):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if isinstance(value, str):
        return _PATH.sub(lambda match: shortened(match.group()), value)
    return value


def shortened(path: str) -> str:
    """A path from its folder `runs` on, otherwise its last name.

    `/home/me/runs/train/drafter` becomes `runs/train/drafter`, `../data/mt_bench.jsonl`
    becomes `mt_bench.jsonl`, `/usr/bin/python3` becomes `python3`.
    """
    parts = PurePosixPath(path).parts
    return "/".join(parts[parts.index("runs") :]) if "runs" in parts else parts[-1].strip("/")
