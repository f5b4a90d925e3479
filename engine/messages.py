"""What a replica, its core and its loader say to each other: one small message a step each way.

The core never talks to the loader itself: a `Load` leaves in the core's output, the replica hands
it on, and its `LoadDone` comes back in the next input. So a loader can die and be replaced.
Standard library only; all three are of one release, so these travel pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from engine.adapters.layout import AdapterLayout
from engine.core_stats import CoreStats, Measures
from engine.device_memory import DeviceMemory
from engine.errors import ErrorInfo
from engine.timeline import LoadStep, Wait
from engine.types import AdapterRef, FinishReason, Request, Tenant


# To the core ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request early. `finish` STOP settles it as done (a stop string matched)."""

    request_id: str
    finish: FinishReason = FinishReason.ABORT


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A request for this version is likely: bring it closer, if there is room.

    to_device   not just into host memory
    is_ordered  an operator's warm-up: what is idle makes way for it. Else it takes free room alone
    tenant      whose it is, with its quotas; None where the sender doesn't know them
    """

    ref: AdapterRef
    to_device: bool = True
    is_ordered: bool = False
    tenant: Tenant | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep this version where it is once it is there: on the device, or else in host memory."""

    ref: AdapterRef
    on_device: bool


@dataclass(frozen=True, slots=True)
class SetPins:
    """All pins of this replica from now on: those that are missing here are pinned no longer."""

    pins: tuple[Pin, ...]


@dataclass(frozen=True, slots=True)
class SetLimits:
    """These tenants' weights and limits from now on, also for what is already here."""

    tenants: tuple[Tenant, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """This version is retired: its copies in every tier of this replica go when the last request
    that waits for it or runs on it has ended. With `now` those end at once, with an error."""

    ref: AdapterRef
    now: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Whatever this version failed to load of, or that it was retired, may be mended: who asks for
    it next has it loaded, as if nothing were remembered."""

    ref: AdapterRef


@dataclass(frozen=True, slots=True)
class LoadDone:
    """The block lies in host memory at the load's `host_offset`, or `error` says why not.

    layout       where its modules lie (None on error)
    seconds      from the loader's start on it to its end
    from_disk    the object was already on the local disk
    permanent    trying again can't help (rejected bytes, killed the loader too often)
    steps        when the loader did what
    """

    load_id: int
    key: str
    layout: AdapterLayout | None
    error: ErrorInfo | None
    seconds: float
    from_disk: bool
    permanent: bool = False
    steps: tuple[LoadStep, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerService:
    """What another replica has served: (tenant, weighted tokens since the start of its core), of
    the tenants that have changed since the last message about it; of all of them in the first.

    epoch  names one life of its core: counters begin at 0 in each
    """

    replica: str
    epoch: str
    served: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ServiceElsewhere:
    """What the other replicas have served, to be counted into the accounts here."""

    peers: tuple[PeerService, ...]


Input = Submit | Abort | Prefetch | SetPins | SetLimits | Drop | Retry | LoadDone | ServiceElsewhere


# From the core ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Load:
    """Fetch a version and lay its block into shared host memory.

    host_offset, num_bytes  the room set aside, in bytes; num_bytes = ref.num_elements x item size
    """

    load_id: int
    ref: AdapterRef
    host_offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Discard:
    """To the loader: delete a retired version's copy on the local disk. It isn't answered."""

    ref: AdapterRef


class SequenceOutput(NamedTuple):
    """What one step added to one request. A tuple, since a step makes one for every row.

    tokens      new output token ids, a stop token excluded
    finish      set on a request's last output
    error       set where finish is ERROR
    num_cached  prompt tokens that came from the prefix cache, in the first output
    waits       with the last output: the request's times in the queue
    """

    request_id: str
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    error: ErrorInfo | None = None
    num_cached: int = 0
    waits: tuple[Wait, ...] = ()


new_output: Callable[[tuple[Any, ...]], SequenceOutput] = partial(tuple.__new__, SequenceOutput)
"""Of all its fields, at half the cost of `SequenceOutput(...)`."""


@dataclass(frozen=True, slots=True)
class Residency:
    """Where adapter versions are: what has changed since the last one or, now and then, the whole.

    places  (`ref.key`, sum of `residency.LOADING`, HOST, DEVICE and PINNED; 0: nowhere any more)
    """

    places: tuple[tuple[str, int], ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """at_s: when it left the core, on this host's monotonic clock (0: it never left one)."""

    sequences: tuple[SequenceOutput, ...] = ()
    loads: tuple[Load, ...] = ()
    discards: tuple[Discard, ...] = ()
    residency: Residency | None = None
    stats: CoreStats | None = None
    measures: Measures | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The core's first message: it can serve. `num_pages` of `page_bytes` each in its arena;
    memory: how that was found, on a GPU."""

    num_pages: int
    page_bytes: int
    startup_s: float
    memory: DeviceMemory | None = None
