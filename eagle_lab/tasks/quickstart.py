"""`+experiment=quickstart`: the whole road once, small: capture, train, bench, sweep.

Every step is the task of its name in a folder below `output_dir`, run with the same settings: an
interrupted quickstart goes on at the step, and within the step, where it stopped.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eagle_lab.drafters.folder import read_config, shipped_for
from eagle_lab.tasks import bench, capture, sweep, train

STEPS = {
    "capture": (capture.run, "the target answers prompts, its features are stored"),
    "train": (train.run, "a drafter learns to predict the next feature"),
    "bench": (bench.run, "methods side by side on the same questions"),
    "sweep": (sweep.run, "the draft tree's depth, width and size"),
}


def run(config: DictConfig) -> None:
    """Run every step; each says where its report is."""
    console = Console()
    root = Path(config.output_dir)
    started = time.perf_counter()
    for number, (name, (task, what)) in enumerate(STEPS.items(), start=1):
        console.rule(f"{number}/{len(STEPS)}  {name}: {what}")
        task(step_config(config, name))
    minutes = (time.perf_counter() - started) / 60
    console.print(f"quickstart took {minutes:.1f} minutes; everything is in {root}", soft_wrap=True)


def step_config(config: DictConfig, name: str) -> DictConfig:
    """The settings of one step: the same ones, in its own folder, with the others' results."""
    root = Path(config.output_dir)
    step = config.copy()
    step.task = name
    step.output_dir = str(root / name)
    step.data.store = str(root / "capture") if name == "train" else None
    step.drafter.path = str(root / "train" / "drafter") if name in ("bench", "sweep") else None
    if name == "bench":
        step.method = with_shipped(step.method, root / "train" / "drafter")
    if name == "sweep":
        step.method = {step.grid.method: step.method[step.grid.method]}
    return step


def with_shipped(methods: DictConfig, fresh: Path) -> dict[str, Any]:
    """`methods`, and each EAGLE method once more with the package's drafter, if there is one.

    Args:
        fresh: folder of the drafter just trained, which names the target.
    """
    entries = OmegaConf.to_container(methods)  # references to tree sizes stay references
    assert isinstance(entries, dict)
    both = {str(name): settings for name, settings in entries.items()}
    shipped = shipped_for(read_config(fresh)["target"]["fingerprint"])
    if shipped is not None:
        both |= {
            f"{name}_shipped": {**settings, "drafter": shipped.name}
            for name, settings in both.items()
            if name.startswith("eagle_")
        }
    return both
