"""CUDA graphs: work over a cache, recorded once for a bucket of shapes and replayed in one launch.

    graphs = CacheGraphs(CudaRecorder())
    logits, features = graphs.run(function, cache, num_slots, tokens, depths, ancestors)

A small pass on a GPU takes as long as its hundreds of launches; a recorded one takes one. A
recording repeats the same kernels on the same addresses, so everything it touches stays where it
is: inputs and lengths are copied into buffers, and the cache is moved into a block that outlives
it and serves the next text, too. Outputs are left in buffers that all recordings share. Shapes are
rounded up to buckets: rows to a power of two, attended slots to one of four steps per power of two.
Nothing else is new: the recorded function is the one that runs without graphs, over a cache that
says it is as long as the bucket. What is not there is masked, as it is for the shorter rows of a
batch.

Shapes: B rows, R rows of the bucket, S attended slots of the bucket, C capacity of a block.

Recording work on fixed addresses, to do it again in one launch; on a GPU as a CUDA graph.

    replay = CudaRecorder()(work)
    replay()

Knows nothing of models: what is worked on, and that it stays where it is, is the caller's business.

The target's verify pass from CUDA graphs: trees of any size in buckets of columns.

    target.graphs = VerifyGraphs(target, CudaRecorder())
    target.score(tree, cache)                                # from then on a replay

Columns that a bucket adds are padding as a tree's own: they see themselves, nothing sees them, and
their slots lie after the tree's. Shapes: B rows, N columns.
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

Recorder = Callable[[Callable[[], None]], Callable[[], object]]
"""Calls work on fixed addresses at least once; what it returns does that work again.

Raises `NotRecorded` where it cannot; an error of the work itself comes through as it is.
"""


class NotRecorded(RuntimeError):
    """Work that runs as it is, but not within a capture."""


class CudaRecorder:
    """Records by capturing a CUDA graph; all graphs of a recorder share their working memory."""

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
        back, capture = (
            torch.cuda.stream(current),
            # What other threads do on the GPU meanwhile is not part of it, and does no harm
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        )
        try:
            with back, capture:  # a capture that fails would leave its stream current
                work()
        except RuntimeError as error:
            first = error.__context__ or error  # ending a broken capture is an error of its own
            raise NotRecorded(str(first).partition("\n")[0]) from error
        return graph.replay


Tensors = tuple[Tensor, ...]
CacheFunction = Callable[..., Tensors]
"""(cache, *inputs) -> outputs; inputs and outputs have rows first. Writes tree slots of the cache,
commits nothing, never looks at values from the host."""

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
    """Where recordings leave their outputs: one buffer for each power of two of numbers.

    The logits of a large batch take half a gigabyte; kept for each recording they would fill the
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


class _Replay:
    """A function recorded over a block of memory at one bucket of shapes."""

    def __init__(
        self,
        function: CacheFunction,
        recorder: Recorder,
        cache: TreeCache,
        store: Tensor,
        num_seen: int,
        inputs: Tensors,
        buffers: _OutputBuffers,
    ):
        """Record for a cache as long as `num_seen`, in the first rows of `store`."""
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

        self._replay = recorder(work)

    def __call__(self, *values: Tensor) -> Tensors:
        """Outputs for the lengths and inputs `values`, each [B, ...]."""
        batch = len(values[0])
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer[:batch].copy_(value)
        self._replay()
        return tuple(output[:batch].clone() for output in self._outputs)


@dataclass(eq=False)
class _Block:
    """Memory that one cache at a time works in, and the recordings made on it."""

    store: Tensor
    owner: Callable[[], TreeCache | None]
    recordings: dict[tuple[object, ...], _Replay] = field(default_factory=dict)

    def suits(self, num_rows: int, num_slots: int) -> bool:
        """Whether there is room for that many rows and slots."""
        return self.store.shape[2] >= num_rows and self.store.shape[4] >= num_slots


class CacheGraphs:
    """Functions over the same caches that run from recordings.

    After a recording that failed nothing more is recorded in this process, and everything runs as
    it is: the allocator of torch 2.11 goes on as if the capture had not ended.

    Attributes:
        num_recordings: made by all of them; where it grows, a time taken meanwhile holds recording.
        failed: whether a recording failed.
    """

    num_recordings: ClassVar[int] = 0
    failed: ClassVar[bool] = False

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._blocks: list[_Block] = []
        self._outputs = _OutputBuffers()

    @torch.no_grad()
    def run(
        self, function: CacheFunction, cache: TreeCache, num_slots: int, *inputs: Tensor
    ) -> Tensors:
        """The outputs of `function` for `cache` and `inputs` [B, ...].

        Args:
            function: the same one, or a method of the same object, is recorded once.
            cache: it may be moved to another place in memory; an empty one is no case for graphs.
            num_slots: tree slots of each row that the function writes or sees.
            inputs: a recording is made for each combination of their shapes and the buckets.
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
        if key not in block.recordings:
            recorded = function, self._recorder, cache, block.store, slots - num_slots, inputs
            try:
                block.recordings[key] = _Replay(*recorded, self._outputs)
            except NotRecorded as reason:
                CacheGraphs.failed = True
                warnings.warn(
                    f"no CUDA graph could be captured, from here on kernels are launched one by "
                    f"one: {reason}",
                    stacklevel=2,
                )
                return function(cache, *inputs)
            CacheGraphs.num_recordings += 1
        return block.recordings[key](cache.lengths, *inputs)

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
