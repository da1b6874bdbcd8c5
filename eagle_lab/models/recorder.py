"""Recording work on fixed addresses, to do it again in one launch; on a GPU as a CUDA graph.

    replay = CudaRecorder()(work)
    replay()

Knows nothing of models: what is worked on, and that it stays where it is, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

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
