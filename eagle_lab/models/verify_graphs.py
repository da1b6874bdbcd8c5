"""The target's verify pass from CUDA graphs: trees of any size in buckets of columns.

    target.graphs = VerifyGraphs(target, CudaRecorder())
    target.score(tree, cache)                                # from then on a replay

Columns that a bucket adds are padding as a tree's own: they see themselves, nothing sees them, and
their slots lie behind the tree's. Shapes: B rows, N columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_lab.models.cache import TreeCache
from eagle_lab.models.graphs import CacheGraphs, Tensors, column_bucket
from eagle_lab.models.recorder import Recorder
from eagle_lab.models.tree_pass import TreePass

if TYPE_CHECKING:
    from eagle_lab.models.target import Target
    from eagle_lab.tree.draft_tree import DraftTree


_WATCHED_ROPES = ("dynamic", "longrope")  # their frequencies follow the longest position


def no_graphs_reason(config: Any) -> str | None:
    """Why passes of a model with the text `config` cannot be recorded; None if nothing is known.

    A capture that fails harms the whole process, so what is known to fail is not tried.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [rope for rope in ropes.values() if isinstance(rope, dict)]
    types = {rope.get("rope_type") for rope in (ropes, *by_layer_type)}
    found = [name for name in _WATCHED_ROPES if name in types]
    return f"its rotary embedding ({found[0]}) looks at the positions of a pass" if found else None


class VerifyGraphs:
    """Scores trees for `target` from recordings; drafters of the target record with `recorder`."""

    def __init__(self, target: Target, recorder: Recorder):
        self.recorder = recorder
        self._target = target
        self._graphs = CacheGraphs(recorder)

    def score(self, tree: DraftTree, cache: TreeCache) -> Tensors:
        """Logits [B, N, V] and features [B, N, F] at every column of `tree`."""
        num_columns = column_bucket(tree.num_columns)
        added = num_columns - tree.num_columns
        tokens, depths, ancestors = tree.tokens, tree.depths, tree.ancestors
        if added:
            tokens, depths = (pad(values, (0, added)) for values in (tokens, depths))
            itself = torch.eye(num_columns, dtype=torch.bool, device=tokens.device)
            ancestors = pad(ancestors, (0, added, 0, added)) | itself
        outputs = self._graphs.run(self._pass, cache, num_columns, tokens, depths, ancestors)
        logits, features = (values[:, : tree.num_columns] for values in outputs)
        return logits, features

    def _pass(self, cache: TreeCache, tokens: Tensor, depths: Tensor, ancestors: Tensor) -> Tensors:
        positions = cache.lengths[:, None] + depths
        return self._target.logits_and_features(tokens, TreePass(cache, positions, ancestors))
