"""CUDA graphs: work over a cache, captured once per bucket of shapes and replayed in one launch.

    target.graphs = VerifyGraphs(target, CudaGraphCapture())
    target.score(tree, cache)                                # from then on a replay

A small pass on a GPU takes as long as its hundreds of launches; a captured one takes one. A replay
repeats the same kernels on the same addresses, so everything they touch stays where it is: inputs
and lengths are copied into buffers, and the cache is moved into a block that outlives the text and
serves the next one, too. Outputs are left in buffers that all captured functions share. Shapes are
rounded up to buckets: rows to a power of two, attended slots to one of four steps per power of two,
columns of a tree to a multiple of eight. What a bucket adds is padding and masked as such: rows
repeat the last one, columns see only themselves, slots lie after the cache's length.

`CacheGraphs` knows functions over a cache, no models and no trees; it runs on any device with a
`GraphCapture` of that device, which is how the tests run it on a CPU. `VerifyGraphs` scores trees
with it, drafters their passes (`methods.eagle`).

Shapes: B rows, R rows of the bucket, N columns, F feature width, V vocabulary, S attended slots of
the bucket, C capacity of a block.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.tree_pass import TreePass

if TYPE_CHECKING:
    from eagle_lab.engine.draft_tree import DraftTree
    from eagle_lab.targets.target import Target


_NUM_WARMUPS = 3

GraphCapture = Callable[[Callable[[], None]], Callable[[], object]]
"""Calls work on fixed addresses at least once and returns what does that work again.

Raises `CaptureFailed` where it cannot; an error of the work itself comes through as it is.
"""


class CaptureFailed(RuntimeError):
    """Work that runs, but cannot be captured."""


class CudaGraphCapture:
    """Captures work as CUDA graphs, which share their working memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Callable[[], None]) -> Callable[[], object]:
        """Do `work` a few times (libraries choose kernels, make workspaces), then capture it."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_NUM_WARMUPS):
                work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        back, capturing = (
            torch.cuda.stream(current),
            # What other threads do on the GPU meanwhile is not part of it, and does no harm
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        )
        try:
            with back, capturing:  # a capture that fails would leave its stream current
                work()
        except RuntimeError as error:
            first = error.__context__ or error  # ending a broken capture is an error of its own
            raise CaptureFailed(str(first).partition("\n")[0]) from error
        return graph.replay


Tensors = tuple[Tensor, ...]
CacheFunction = Callable[..., Tensors]
"""(cache, *inputs) -> outputs; inputs and outputs have rows first. Writes tree slots of the cache,
commits nothing, never syncs with the host."""

_LEAST_SLOTS = 256


def row_bucket(num_rows: int) -> int:
    """R: the next power of two."""
    return 1 << (num_rows - 1).bit_length()


def column_bucket(num_columns: int) -> int:
    """Columns of a pass: 1, 2, 4, then multiples of eight."""
    return row_bucket(num_columns) if num_columns <= 4 else -(-num_columns // 8) * 8


def slot_bucket(num_slots: int) -> int:
    """S: 256, 320, 384, 448, 512, 640, ...: at most a quarter more than needed beyond 256."""
    if num_slots <= _LEAST_SLOTS:
        return _LEAST_SLOTS
    step = (1 << (num_slots - 1).bit_length()) // 8
    return -(-num_slots // step) * step


def block_size(num_rows: int, num_slots: int) -> tuple[int, int]:
    """Rows and slots of the memory that a cache of `num_rows` and `num_slots` is moved to."""
    return row_bucket(num_rows), row_bucket(slot_bucket(num_slots))


class _OutputBuffers:
    """Outputs of captured functions: one buffer for each power of two of numbers.

    The logits of a large batch take half a gigabyte; a buffer per captured function would fill the
    memory.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def like(self, place: int, output: Tensor) -> Tensor:
        """Room for the output at `place` of a function, in the shape of `output`."""
        count = output.numel()
        key = place, row_bucket(count), output.dtype
        if key not in self._buffers:
            self._buffers[key] = output.new_empty(row_bucket(count))
        return self._buffers[key][:count].view(output.shape)


class _CapturedFunction:
    """A function captured over a block of memory at one bucket of shapes."""

    def __init__(
        self,
        function: CacheFunction,
        capture: GraphCapture,
        cache: TreeCache,
        store: Tensor,
        num_seen: int,
        inputs: Tensors,
        buffers: _OutputBuffers,
    ):
        """Capture for a cache as long as `num_seen`, in the first rows of `store`."""
        rows = row_bucket(len(cache.lengths))
        # Rows beyond the batch repeat its last one: what they compute is harmless, and dropped
        places = torch.arange(rows, device=store.device).clamp(max=len(cache.lengths) - 1)
        self._buffers = tuple(value[places] for value in (cache.lengths, *inputs))
        lengths, *rest = self._buffers
        # A graph knows addresses only: all it reads has to live as long as it does
        self._static = cache.over(store[:, :, :rows], lengths, num_seen)

        def work() -> None:
            outputs = function(self._static, *rest)
            self._outputs = tuple(map(buffers.like, range(len(outputs)), outputs))
            for output, value in zip(self._outputs, outputs, strict=True):
                output.copy_(value)

        self._replay = capture(work)

    def __call__(self, *values: Tensor) -> Tensors:
        """Outputs for the lengths and inputs `values`, each [B, ...]."""
        batch = len(values[0])
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer[:batch].copy_(value)
        self._replay()
        return tuple(output[:batch].clone() for output in self._outputs)


@dataclass(eq=False)
class _Block:
    """Memory that one cache at a time works in, and the functions captured on it."""

    store: Tensor
    owner: Callable[[], TreeCache | None]
    captured: dict[tuple[object, ...], _CapturedFunction] = field(default_factory=dict)

    def suits(self, num_rows: int, num_slots: int) -> bool:
        """Whether there is room for that many rows and slots."""
        return self.store.shape[2] >= num_rows and self.store.shape[4] >= num_slots


class CacheGraphs:
    """Functions over the same caches, each captured at its first call and replayed from then on.

    After a capture that failed nothing more is captured in this process, and every function runs
    launch by launch: the allocator of torch 2.11 goes on as if the capture had not ended.

    Attributes:
        num_captures: captures of all instances; a time in which it grew includes capturing.
        failed: whether a capture failed.
    """

    num_captures: ClassVar[int] = 0
    failed: ClassVar[bool] = False

    def __init__(self, capture: GraphCapture):
        self._capture = capture
        self._blocks: list[_Block] = []
        self._outputs = _OutputBuffers()

    @torch.no_grad()
    def run(
        self, function: CacheFunction, cache: TreeCache, num_slots: int, *inputs: Tensor
    ) -> Tensors:
        """The outputs of `function` for `cache` and `inputs` [B, ...].

        Args:
            function: the same one, or a method of the same object, is captured once.
            cache: it may be moved to another place in memory; an empty one is no case for graphs.
            num_slots: tree slots of each row that the function writes or sees.
            inputs: there is a capture for each combination of their shapes and the buckets.
        """
        if CacheGraphs.failed or cache.store is None:
            return function(cache, *inputs)
        rows = row_bucket(len(cache.lengths))
        slots = slot_bucket(cache.max_length + num_slots)
        block = self._block_of(cache, cache.store, rows, slots)
        key = (
            function,
            rows,
            slots,
            num_slots,
            *((value.dtype, value.shape[1:]) for value in inputs),
        )
        if key not in block.captured:
            num_seen = slots - num_slots
            try:
                block.captured[key] = _CapturedFunction(
                    function, self._capture, cache, block.store, num_seen, inputs, self._outputs
                )
            except CaptureFailed as reason:
                CacheGraphs.failed = True
                warnings.warn(
                    f"no CUDA graph could be captured, from here on kernels are launched one by "
                    f"one: {reason}",
                    stacklevel=2,
                )
                return function(cache, *inputs)
            CacheGraphs.num_captures += 1
        return block.captured[key](cache.lengths, *inputs)

    def _block_of(self, cache: TreeCache, store: Tensor, rows: int, slots: int) -> _Block:
        """The block that `cache`, now in `store`, works in; it moves there if it must."""
        for block in self._blocks:
            if block.store.data_ptr() == store.data_ptr() and block.suits(rows, slots):
                return block
        free = [block for block in self._blocks if block.owner() in (None, cache)]
        chosen = next((block for block in free if block.suits(rows, slots)), None)
        if chosen is None:
            # What is free and too small gives its memory back
            self._blocks = [block for block in self._blocks if block not in free]
            size = block_size(rows, slots)
            shape = (*store.shape[:2], size[0], store.shape[3], size[1], store.shape[5])
            chosen = _Block(store.new_zeros(shape), weakref.ref(cache))
            self._blocks.append(chosen)
        chosen.owner = weakref.ref(cache)
        cache.move_to(chosen.store)
        return chosen


_SYNCING_ROPES = ("dynamic", "longrope")  # their frequencies follow the longest position


def no_graphs_reason(config: Any) -> str | None:
    """Why passes of a model with the text `config` cannot be captured; None if they may.

    A capture that fails harms the whole process, so these models are not tried.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [rope for rope in ropes.values() if isinstance(rope, dict)]
    types = {rope.get("rope_type") for rope in (ropes, *by_layer_type)}
    found = [name for name in _SYNCING_ROPES if name in types]
    return (
        f"its rotary embedding ({found[0]}) needs the positions of a pass on the host"
        if found
        else None
    )


class VerifyGraphs:
    """Scores trees for `target` by CUDA graphs; its drafters capture theirs with `capture`, too."""

    def __init__(self, target: Target, capture: GraphCapture):
        self.capture = capture
        self._target = target
        self._graphs = CacheGraphs(capture)

    def score(self, tree: DraftTree, cache: TreeCache) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [B, N, V] and features by name [B, N, F] at every column of `tree`."""
        num_columns = column_bucket(tree.num_columns)
        added = num_columns - tree.num_columns
        tokens, depths, ancestors = tree.tokens, tree.depths, tree.ancestors
        if added:
            tokens, depths = (pad(values, (0, added)) for values in (tokens, depths))
            itself = torch.eye(num_columns, dtype=torch.bool, device=tokens.device)
            ancestors = pad(ancestors, (0, added, 0, added)) | itself
        outputs = self._graphs.run(self._pass, cache, num_columns, tokens, depths, ancestors)
        logits, *features = (values[:, : tree.num_columns] for values in outputs)
        return logits, dict(zip(self._target.feature_names, features, strict=True))

    def _pass(self, cache: TreeCache, tokens: Tensor, depths: Tensor, ancestors: Tensor) -> Tensors:
        positions = cache.lengths[:, None] + depths
        tree_pass = TreePass(cache, positions, ancestors)
        logits, features = self._target.logits_and_features(tokens, tree_pass)
        return logits, *features.values()
