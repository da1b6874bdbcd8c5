"""A claim's folder as a contributor writes it; every file can be replaced or left out."""

from __future__ import annotations

import json
from pathlib import Path

CLAIM = """\
title: Trees accept more
paper: >-
  EAGLE (2401.15077),
  ablation of the tree.
runs:
  trees: {}
  other: {num_training_tokens: 1000}
commands:
  trees: |
    python -m eagle_lab.run +experiment=bench \\
        output_dir=runs/trees
"""
TOLERANCE = "target: ours\ntolerance:\n  tau: {at_least: 0}\n"
EXPECTED = """\
source,target,benchmark,temperature,method,depth,width,num_nodes,tau,speedup
EAGLE,vicuna-7b,bench80,0,eagle_static,,,,3.94,2.9
aim,ours,bench80,0,eagle_static,5,,25,2,
EAGLE,vicuna-7b,bench80,1,eagle_static,,,,3.17,
aim,ours,bench80,0,eagle_dynamic,6,10,32,3.3,
"""
MEASURED = """\
run,target,benchmark,temperature,method,batch_size,depth,width,num_nodes,tau,tau_low,tau_high,tau_micro
trees,ours,bench80,0,eagle_dynamic,16,6,10,32,3.1,3,3.2,2.9
trees,ours,bench80,0,eagle_static,16,5,,25,2.5,2.25,2.75,2.4
"""
PROVENANCE = {
    "trees": {
        "status": "finished", "start": "2026-11-30T10:00:00+00:00",
        "end": "2026-11-30T10:21:04+00:00", "device": "cpu", "device_name": "AMD EPYC",
        "dtype": "float32", "machine": {"cpu": "AMD EPYC", "num_cpus": 2},
    }
}  # fmt: skip
FILES = {
    "claim.yaml": CLAIM + TOLERANCE,
    "expected.csv": EXPECTED,
    "measured.csv": MEASURED,
    "provenance.json": json.dumps(PROVENANCE),
}


def write_claim(root: Path, name: str = "trees", **changes: str | None) -> Path:
    """A folder of claims with one claim; `changes` are files by stem, None leaves one out."""
    folder = root / name
    folder.mkdir(parents=True)
    for file, content in FILES.items():
        content = changes.get(file.partition(".")[0], content)
        if content is not None:
            (folder / file).write_text(content, "utf-8")
    return root


def write_unmeasured(root: Path, **changes: str | None) -> Path:
    """The same claim before anything was measured."""
    return write_claim(root, **{"measured": None, "provenance": None, **changes})
