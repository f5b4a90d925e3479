"""The spans of traced requests in a replica: made when the core says that they have ended.

Below the span of the call, for each sequence: `queue` for each time that it waited, with the way of
its adapter (`adapter`) where it waited for that; `prefill`; `decode`, with its number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Span

from deployments.telemetry.instrument import Where
from deployments.telemetry.section import TelemetrySection
from deployments.telemetry.tracing import PARENT, Tracing, fail, span_fields, tracing
from engine.messages import Output, SequenceOutput
from engine.timeline import Journey, Wait
from engine.types import Request

MAX_SEQUENCES = 8
"""Of one call: a trace with the spans of a hundred says no more."""


@dataclass(slots=True)
class Marks:
    """What is known of a sequence. Times are of the host's monotonic clock, 0: not yet."""

    call: Span
    index: int
    request: Request
    first_s: float = 0.0
    num_steps: int = 0
    num_tokens: int = 0
    num_cached: int = 0


class NoSpans:
    """Where nothing is traced. The methods are those of `ReplicaSpans`."""

    def begin(
        self, call: Mapping[str, Any], slot: Callable[[], int], about: dict[str, Any]
    ) -> Span | None:
        return None

    def submitted(self, span: Span, requests: Sequence[Request]) -> None:
        pass

    def lost(self) -> None:
        pass

    def close(self) -> None:
        pass

    def note(self, output: Output) -> None:
        pass


class ReplicaSpans(NoSpans):
    """Of all calls of one replica."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._marks: dict[str, Marks] = {}

    def begin(
        self, call: Mapping[str, Any], slot: Callable[[], int], about: dict[str, Any]
    ) -> Span | None:
        """The call's span; None where it isn't sampled. about: fields of its log lines."""
        if PARENT not in call:
            return None
        span = self._tracing.server_span("replica", {PARENT: call[PARENT]})
        span.set_attribute("loraplex.slot", slot())
        about.update(span_fields(span))
        return span if span.is_recording() else None

    def submitted(self, span: Span, requests: Sequence[Request]) -> None:
        """These sequences of the call go to the core."""
        span.set_attribute("loraplex.sequences", len(requests))
        for index, request in enumerate(requests[:MAX_SEQUENCES]):
            self._marks[request.id] = Marks(span, index, request)

    def lost(self) -> None:
        """The core is gone: nothing more will be heard of what it had."""
        self._marks.clear()

    def close(self) -> None:
        """Send what is left, as `Tracing.close` does."""
        self._tracing.close()

    def note(self, output: Output) -> None:
        """What one step brought."""
        if not self._marks:
            return
        for part in output.sequences:
            marks = self._marks.get(part.request_id)
            if marks is not None:
                self._note(marks, part, output.at_s)

    def _note(self, marks: Marks, part: SequenceOutput, at_s: float) -> None:
        if part.tokens:
            marks.num_steps += 1
            marks.num_tokens += len(part.tokens)
            marks.first_s = marks.first_s or at_s
        marks.num_cached = max(marks.num_cached, part.num_cached)
        if part.finish is not None:
            del self._marks[part.request_id]
            self._end(marks, part, at_s)

    def _end(self, marks: Marks, part: SequenceOutput, end_s: float) -> None:
        for number, wait in enumerate(part.waits):
            self._wait(marks, wait, number)
        if marks.first_s and part.waits:
            self._prefill(marks, part.waits[0].end_s)
            self._decode(marks, part, end_s)
        elif part.error is not None and marks.call.is_recording():
            fail(marks.call, part.error.code, part.error.message)

    def _wait(self, marks: Marks, wait: Wait, number: int) -> None:
        told = {**_of(marks), "loraplex.preemptions_before": number}
        queue = self._tracing.child(marks.call, "queue", (wait.start_s, wait.end_s), told)
        if wait.journey is not None:
            self._journey(queue, marks.request, wait, wait.journey)

    def _journey(self, queue: Span, request: Request, wait: Wait, journey: Journey) -> None:
        """What the adapter went through, from before the request if it was on its way already."""
        ref = request.adapter
        assert ref is not None
        start_s = min(wait.start_s, journey.began_s or wait.start_s)
        end_s = journey.resident_s or wait.end_s
        own, num_others = _displaced(journey, request.tenant.id)
        told = {
            "loraplex.adapter": ref.ring_key,
            "loraplex.version": ref.digest,
            "loraplex.load_id": journey.load_id,
            "loraplex.from": _origin(journey),
            "loraplex.displaced": own,
            "loraplex.displaced_others": num_others,
            "loraplex.begun_before": journey.began_s > 0 and journey.began_s < wait.start_s,
        }
        way = self._tracing.child(queue, "adapter", (start_s, end_s), told)
        for name, from_s, to_s in _stages(start_s, journey):
            self._tracing.child(way, f"adapter.{name}", (from_s, to_s), {})

    def _prefill(self, marks: Marks, scheduled_s: float) -> None:
        told = {
            **_of(marks),
            "loraplex.prompt_tokens": len(marks.request.prompt),
            "loraplex.cached_tokens": marks.num_cached,
        }
        self._tracing.child(marks.call, "prefill", (scheduled_s, marks.first_s), told)

    def _decode(self, marks: Marks, part: SequenceOutput, end_s: float) -> None:
        told = {
            **_of(marks),
            "loraplex.steps": marks.num_steps,
            "loraplex.completion_tokens": marks.num_tokens,
            "loraplex.finish": str(part.finish),
        }
        events = [("first_token", marks.first_s)]
        for wait in part.waits[1:]:
            events += [("preempted", wait.start_s), ("resumed", wait.end_s)]
        error = None if part.error is None else (part.error.code, part.error.message)
        self._tracing.child(marks.call, "decode", (marks.first_s, end_s), told, events, error)


def replica_spans(section: TelemetrySection, instance: Callable[[], str]) -> NoSpans:
    """None are made where traces are off or go nowhere."""
    traces = tracing(section, Where.REPLICA, instance)
    return NoSpans() if traces is None else ReplicaSpans(traces)


def _of(marks: Marks) -> dict[str, Any]:
    return {"loraplex.sequence": marks.index}


def _origin(journey: Journey) -> str:
    """Where the version was when it was needed."""
    if journey.load_id < 0:
        return "host"
    return "disk" if journey.from_disk else "store"


def _displaced(journey: Journey, tenant: str) -> tuple[list[str], int]:
    """The tenant's own versions that left the device for this one, and how many others did: a trace
    is shown to its tenant, whom the names of the others' versions don't concern."""
    own = [key for key in journey.displaced if key.startswith(f"{tenant}/")]
    return own, len(journey.displaced) - len(own)


def _stages(start_s: float, journey: Journey) -> list[tuple[str, float, float]]:
    """(name, start, end) of each part of its way that is over, in order."""
    stages = [("wait_for_loader", start_s, journey.began_s)]
    stages += [(step.name, step.start_s, step.end_s) for step in journey.steps]
    stages += [
        ("wait_for_room", journey.loaded_s or start_s, journey.claimed_s),
        ("make_room", journey.claimed_s, journey.upload_s),
        ("upload", journey.upload_s, journey.resident_s),
    ]
    return [(name, since, until) for name, since, until in stages if since > 0 and until > since]
