"""When things happened to a request and to the adapter version that it waited for.

The core notes these and hands them over with a request's last output; spans are made of them
elsewhere. Times are seconds of this host's monotonic clock, which all processes of a replica share;
0 stands for what has not happened. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class LoadStep(NamedTuple):
    """One step of the loader at a version: `turn` (waits for a processor), `fetch`, `parse`,
    `verify` or `repack`."""

    name: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Journey:
    """A version's way to the device, or the part of it that it has made.

    load_id     of the load that brought it to host memory; -1: it was there already
    began_s     when that load was sent to the loader
    loaded_s    when its answer came: the block lies in host memory, or the load failed
    steps       what the loader did meanwhile
    from_disk   the object was already on the local disk
    claimed_s   when it got its run of the arena
    upload_s    when the copy into that run began
    resident_s  when plans could use it
    displaced   `ref.key`s of the versions that left the device for it
    """

    load_id: int = -1
    began_s: float = 0.0
    loaded_s: float = 0.0
    steps: tuple[LoadStep, ...] = ()
    from_disk: bool = False
    claimed_s: float = 0.0
    upload_s: float = 0.0
    resident_s: float = 0.0
    displaced: tuple[str, ...] = ()

    def arrived(self, steps: tuple[LoadStep, ...], from_disk: bool, now: float) -> None:
        """The loader has answered."""
        self.steps, self.from_disk, self.loaded_s = steps, from_disk, now

    @property
    def is_over(self) -> bool:
        return self.resident_s > 0


class Wait(NamedTuple):
    """A time in the queue: from `start_s` (submitted, or preempted) to `end_s` (scheduled, or
    ended), and the journey that the adapter made meanwhile (None: it was there)."""

    start_s: float
    end_s: float
    journey: Journey | None
