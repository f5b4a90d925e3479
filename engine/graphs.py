"""CUDA graphs of every pass shape, captured once before the first step.

A graph reads and writes fixed addresses alone. All of them share one memory pool: they never run
at the same time. Each shape runs once uncaptured before it is captured, which brings its kernels to
the device, and compiles those that aren't (`kernels.compiling`). And each graph is replayed once,
so that later replays take nothing more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import torch

log = logging.getLogger("loraplex.graphs")

Key = TypeVar("Key", bound=Hashable)


class Graphs(Generic[Key]):
    """stream: where they are captured and replayed."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    def capture(self, keys: Iterable[Key], enqueue: Callable[[Key], None]) -> None:
        """`enqueue(key)` enqueues what the graph of `key` is to do, on the current stream. That is
        done beforehand too, so the inputs must be harmless then."""
        keys = list(keys)
        started = time.perf_counter()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for key in keys:
                enqueue(key)
        self._stream.synchronize()
        ran = time.perf_counter()
        with torch.inference_mode():
            for key in keys:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    enqueue(key)
                self._graphs[key] = graph
        # Its first launch brings a graph to the device, which takes memory there.
        with torch.cuda.stream(self._stream):
            for key in keys:
                self.replay(key)
        self._stream.synchronize()
        log.info(
            "Ran %d shapes in %.1f s, captured them in %.1f s.",
            len(keys),
            ran - started,
            time.perf_counter() - ran,
        )

    def replay(self, key: Key) -> None:
        """On the current stream. KeyError where `key` was not captured."""
        self._graphs[key].replay()

    def __len__(self) -> int:
        return len(self._graphs)
