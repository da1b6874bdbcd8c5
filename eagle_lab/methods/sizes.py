"""Sizes of drafts that suit a device: what `auto` in conf/tree/ stands for.

On a GPU a pass over 60 tokens costs little more than one over a single token, so the papers' sizes
pay. On a CPU every token of a pass costs, and a tree of 59 nodes accepts less than it costs
(experiments/cpu_speedup).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DraftSizes:
    """Sizes of the drafts of EAGLE methods.

    Attributes:
        depth, width, num_nodes: of a dynamic tree.
        paths: nodes of a static tree, see `StaticShape`; None for EAGLE-1's 25 nodes.
    """

    depth: int
    width: int
    num_nodes: int
    paths: list[list[int]] | None


PAPER = DraftSizes(depth=6, width=10, num_nodes=59, paths=None)
"""EAGLE-2's tree for 7B targets (2406.16858), EAGLE-1's static one (2401.15077)."""
SMALL = DraftSizes(
    depth=4,
    width=4,
    num_nodes=8,
    paths=[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]],
)
"""What pays on a CPU."""


def sizes_for(device: torch.device) -> DraftSizes:
    """The sizes that pay on `device`."""
    return SMALL if device.type == "cpu" else PAPER
