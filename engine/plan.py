"""The scheduler's decision for one pass. No tensors, no addresses but those the device needs.

A plan is executed in this order on the compute stream: moves, table entries, then the pass.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from engine.adapters.layout import AdapterLayout
from engine.device_memory import DeviceMemory
from engine.pass_costs import PassCosts, StepSize
from engine.sequence import Sequence

NO_ADAPTER = -1


class Span(NamedTuple):
    """One sequence's part of a pass: tokens `start .. start + num_tokens - 1` of it.

    A tuple, since a step makes one for every row: it costs a quarter of a frozen dataclass.

    adapter          index into the adapter table, or NO_ADAPTER
    samples          the last token's logits are sampled: the span reaches the sequence's end
    token_on_device  its one input token was sampled by a plan not yet committed: it is read from
                     the device's last token of this row
    pages            physical positions of the sequence's pages up to this span's end, in order
    """

    sequence: Sequence
    row: int
    start: int
    num_tokens: int
    adapter: int
    samples: bool
    token_on_device: bool
    pages: tuple[int, ...]


new_span: Callable[[tuple[Any, ...]], Span] = partial(tuple.__new__, Span)
"""Of all its fields, at half the cost of `Span(...)`."""


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `num_pages` whole pages from physical position `source` to `target`.

    Moves run in order. Where the ranges overlap the copy is done in pieces no longer than the
    shift, so that it is right in either direction.
    """

    source: int
    target: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Adapter `adapter` now lies at physical page `start_page` (layout None: it is gone)."""

    adapter: int
    start_page: int
    layout: AdapterLayout | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """id counts up by one. `new_rows` are rows whose sequence began (or began again) in this plan:
    the sampler's per-row state starts afresh there. known_size: `size`, where whoever made the plan
    has counted already."""

    id: int
    spans: tuple[Span, ...]
    moves: tuple[Move, ...] = ()
    entries: tuple[TableEntry, ...] = ()
    new_rows: tuple[int, ...] = ()
    known_size: StepSize | None = None

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def size(self) -> StepSize:
        if self.known_size is not None:
            return self.known_size
        num_tokens = num_read = num_sampling = 0
        for _, _, start, num, _, samples, _, _ in self.spans:
            num_tokens += num
            num_read += start + num
            num_sampling += samples
        return StepSize(num_tokens, num_read, num_tokens == num_sampling == len(self.spans))


@dataclass(frozen=True, slots=True)
class StepResult:
    """tokens[i] belong to plan.spans[i]: empty where it does not sample. `seconds` on the device.
    failed[i] is True where the row's logits were not finite: it drew nothing. replayed: the pass
    was replayed from a captured graph."""

    plan: StepPlan
    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    failed: tuple[bool, ...] = ()
    replayed: bool = False


class Launch(Protocol):
    """A plan on the device."""

    @property
    def plan(self) -> StepPlan: ...

    def ready(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> StepResult: ...


class Upload(Protocol):
    """One adapter's copy from host memory into the arena, on its own stream."""

    def done(self) -> bool:
        """Polled, never waited for."""


class Runner(Protocol):
    """What the engine asks of a device. `launch` enqueues everything and waits for nothing.

    memory: how a GPU's was shared out at the start; None on other devices.
    passes: what it pads steps to, and what they cost (`EXACT` where it computes what they hold).
    """

    num_pages: int
    page_bytes: int
    memory: DeviceMemory | None
    passes: PassCosts

    def launch(self, plan: StepPlan) -> Launch: ...

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> Upload:
        """Copy `num_bytes` at `host_offset` of the shared host memory to page `start_page`."""

    def close(self) -> None: ...
