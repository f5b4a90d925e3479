"""One adapter version as the cache sees it. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

from engine.adapters.layout import AdapterLayout
from engine.plan import NO_ADAPTER
from engine.timeline import Journey
from engine.types import AdapterRef


class Tier(IntEnum):
    """Where a version is, the nearer the greater. DISK is the loader's own matter: the core sees
    such a version as COLD, and learns from a `LoadDone` that it had been there."""

    COLD = 0
    DISK = 1
    HOST = 2
    DEVICE = 3


class State(Enum):
    """A version's way to the device. Forgotten versions are COLD and have no state.

    WANTED     somebody waits for it; its load has not been sent
    LOADING    the loader is at it; its room in host memory is set aside
    HOST       its block lies in host memory
    CLAIMED    it also has a run of the arena, which moves may still have to make contiguous
    UPLOADING  the copy into that run is under way
    DEVICE     plans may use it
    """

    WANTED = auto()
    LOADING = auto()
    HOST = auto()
    CLAIMED = auto()
    UPLOADING = auto()
    DEVICE = auto()


@dataclass(slots=True, eq=False)
class Version:
    """key               `ref.key`, kept: a list of all residents asks for it of each
    tenant            whose request was the first of those that wait, or waited last
    goal              how near a request or a prefetch wants it: HOST or DEVICE
    is_ordered        an operator wants it there: what is idle makes way, as for a request
    pin               the tier at which it is kept, waited for or not (COLD: at none)
    order             counts first wishes: the less, the longer it has been wanted
    num_waiting       queued requests
    num_leases        sequences that use it
    host_offset       its block in host memory, or the room for it (None: there is none)
    adapter           its index from CLAIMED on
    cause             what its last load was for
    began_s           when its load or upload began
    journey           its last way to the device, or as far as it has come
    blocked_since_s   since when it has waited for room in the arena
    resident_since_s  since when plans may use it
    closed_since_s    since when no request is admitted to it, so that it can yield
    """

    ref: AdapterRef
    num_bytes: int
    num_pages: int
    tenant: str
    goal: Tier = Tier.HOST
    is_ordered: bool = False
    pin: Tier = Tier.COLD
    order: int = 0
    state: State = State.WANTED
    num_waiting: int = 0
    num_leases: int = 0
    load_id: int = -1
    cause: str = ""
    load_s: float = 0.0
    upload_s: float = 0.0
    began_s: float = 0.0
    host_offset: int | None = None
    layout: AdapterLayout | None = None
    adapter: int = NO_ADAPTER
    journey: Journey | None = None
    blocked_since_s: float | None = None
    resident_since_s: float = 0.0
    closed_since_s: float | None = None
    key: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.ref.key

    @property
    def tier(self) -> Tier:
        if self.state is State.DEVICE:
            return Tier.DEVICE
        return Tier.COLD if self.host_offset is None or self.is_loading else Tier.HOST

    @property
    def is_loading(self) -> bool:
        return self.state is State.LOADING

    @property
    def is_open(self) -> bool:
        """Whether requests for it can be admitted."""
        return self.state is State.DEVICE and self.closed_since_s is None

    @property
    def is_unused(self) -> bool:
        """No request uses it or waits for it."""
        return not self.num_leases and not self.num_waiting

    @property
    def is_idle(self) -> bool:
        """On the device, unused and not pinned there: the first to go."""
        is_kept = self.num_leases or self.num_waiting or self.pin is Tier.DEVICE
        return self.state is State.DEVICE and not is_kept

    @property
    def is_asked_for(self) -> bool:
        """Worth an eviction: requests wait for it, or an operator ordered it."""
        return bool(self.num_waiting) or self.is_ordered

    @property
    def wish(self) -> str:
        """What it is wanted for: a request, an operator's order or pin, or a hint."""
        if self.num_waiting:
            return "request"
        return "order" if self.is_ordered or self.pin is not Tier.COLD else "hint"

    @property
    def cost_s(self) -> float:
        """Seconds to bring it back to the device."""
        return self.upload_s + (self.load_s if self.host_offset is None else 0.0)
