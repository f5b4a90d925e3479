"""Timing of captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

COPY_BANDWIDTH = 4.28e12
"""Bytes a second, read and written together, of the H200 that the floors are stated for."""


def capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The graph of `step`, which is run once before, so that nothing is compiled in it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def milliseconds(graphs: Sequence[torch.cuda.CUDAGraph], repeats: int = 20) -> list[float]:
    """Median time of a replay of each, in turns, so that the chip's clock drifts for all alike."""
    times: list[list[float]] = [[] for _ in graphs]
    for i in range(repeats + 2):
        for graph, of in zip(graphs, times, strict=True):
            start, end = _event(), _event()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 2:
                of.append(float(start.elapsed_time(end)))
    return [median(of) for of in times]


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
