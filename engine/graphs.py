"""CUDA graphs of every pass shape, captured once before the first step.

A graph reads and writes fixed addresses alone. All of them share one memory pool: they never run
at the same time. Each shape runs once uncaptured before it is captured, which compiles its kernels;
several threads do that, since compiling is most of the time that a start takes. And each graph is
replayed once, so that later replays take nothing more. Threads that come
to a kernel at the same time all compile it, so shapes that share kernels go to two of them, one of
which begins with the largest shape and the other with the smallest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
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

    def capture(
        self,
        keys: Iterable[Key],
        enqueue: Callable[[Key], None],
        kind: Callable[[Key], Hashable] = lambda key: 0,
    ) -> None:
        """`enqueue(key)` enqueues what the graph of `key` is to do, on the current stream. Ahead of
        it that is done by several threads at once, so the inputs must be harmless then. Keys of one
        kind share kernels."""
        keys = list(keys)
        parts = _parts(keys, kind)
        started = time.perf_counter()

        def run(keys: list[Key], stream: torch.cuda.Stream) -> None:
            with torch.inference_mode(), torch.cuda.stream(stream):
                for key in keys:
                    enqueue(key)
            stream.synchronize()

        # In this thread too, whose libraries have handles and workspaces of their own; and first,
        # so that the compiler's driver is there when the others come.
        run(keys[-1:], self._stream)
        with ThreadPoolExecutor(len(parts), thread_name_prefix="compile") as threads:
            device = self._stream.device
            streams = [
                torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                for _ in parts
            ]
            list(threads.map(run, parts, streams))
        run(keys[:1], self._stream)
        compiled = time.perf_counter()
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
            "Compiled for %d shapes in %.1f s, captured them in %.1f s.",
            len(keys),
            compiled - started,
            time.perf_counter() - compiled,
        )

    def replay(self, key: Key) -> None:
        """On the current stream. KeyError where `key` was not captured."""
        self._graphs[key].replay()

    def __len__(self) -> int:
        return len(self._graphs)


def _parts(keys: list[Key], kind: Callable[[Key], Hashable]) -> list[list[Key]]:
    """What each thread does, in order: of each kind the first half, and the second backwards."""
    kinds: dict[Hashable, list[Key]] = {}
    for key in keys:
        kinds.setdefault(kind(key), []).append(key)
    halves = [
        half
        for of in kinds.values()
        for half in (of[: -(-len(of) // 2)], of[: -(-len(of) // 2) - 1 : -1])
    ]
    return [half for half in halves if half]
