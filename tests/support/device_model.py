"""A device that remembers what every page of its arena holds, and checks each plan against it.

It stands in for a real runner wherever a test asks whether the bookkeeping is right: a span must
find all of its sequence's earlier tokens in the pages it names, its adapter where the table says,
and no plan may touch a page while an upload writes there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.fake_runner import counter_token
from engine.pass_costs import EXACT, PassCosts
from engine.plan import NO_ADAPTER, Span, StepPlan, StepResult
from engine.sequence import Sequence
from tests.support.virtual import VirtualClock

# A KV page: {slot: (namespace, token)}. A page of an adapter: (key of the adapter, page number).
Page = dict[int, tuple[object, int]] | tuple[str, int] | None


@dataclass
class ModelUpload:
    end_s: float
    clock: VirtualClock
    pages: range

    def done(self) -> bool:
        return self.clock() >= self.end_s


@dataclass
class ModelLaunch:
    plan: StepPlan
    result: StepResult
    end_s: float
    device: DeviceModel

    def ready(self) -> bool:
        return self.device.clock() >= self.end_s

    def wait(self) -> StepResult:
        self.device.clock.now = max(self.device.clock.now, self.end_s)
        del self.device.touched[self.plan.id]
        return self.result


@dataclass
class DeviceModel:
    """step_s, token_s: a step takes step_s + token_s x its tokens. host: what lies at each offset
    of host memory, by key. draw: the token of a sampling span. fails: whether its row isn't finite.
    touched: by launched plan, the pages that it reads or writes. begun: every upload ever."""

    num_pages: int
    page_bytes: int
    page_tokens: int
    clock: VirtualClock
    step_s: float = 0.01
    token_s: float = 0.0
    upload_s: float = 0.0
    draw: Callable[[Span], int] = counter_token
    fails: Callable[[Span], bool] = lambda span: False
    host: dict[int, str] = field(default_factory=dict)
    memory: list[Page] = field(default_factory=list)
    table: dict[int, int] = field(default_factory=dict)
    owner: dict[int, Sequence] = field(default_factory=dict)
    last_token: dict[int, int] = field(default_factory=dict)
    uploads: list[ModelUpload] = field(default_factory=list)
    begun: list[ModelUpload] = field(default_factory=list)
    touched: dict[int, set[int]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    busy_until_s: float = 0.0
    passes: PassCosts = EXACT

    def __post_init__(self) -> None:
        self.memory = [None] * self.num_pages

    def launch(self, plan: StepPlan) -> ModelLaunch:
        assert plan.id == len(self.plans), "plans are numbered without gaps"
        assert len({span.row for span in plan.spans}) == len(plan.spans)
        self.plans.append(plan)
        touched: set[int] = set()
        for move in plan.moves:
            touched.update(range(move.source, move.source + move.num_pages))
            touched.update(range(move.target, move.target + move.num_pages))
            run = self.memory[move.source : move.source + move.num_pages]
            self.memory[move.target : move.target + move.num_pages] = run
        for entry in plan.entries:
            if entry.layout is None:
                self.table.pop(entry.adapter, None)
            else:
                self.table[entry.adapter] = entry.start_page
        tokens = []
        for span in plan.spans:
            touched.update(span.pages)
            tokens.append(self._run(span, span.row in plan.new_rows))
            touched.update(self._adapter_pages(span))
        assert 0 not in touched, "the reserved page"
        for upload in self.uploads:
            assert upload.done() or not touched & set(upload.pages), "touches an upload's target"
        self.touched[plan.id] = touched
        failed = tuple(span.samples and self.fails(span) for span in plan.spans)
        drawn = tuple(() if bad else t for t, bad in zip(tokens, failed, strict=True))
        seconds = self.step_s + self.token_s * plan.num_tokens
        self.busy_until_s = max(self.busy_until_s, self.clock()) + seconds
        result = StepResult(plan, drawn, seconds, failed)
        return ModelLaunch(plan, result, self.busy_until_s, self)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> ModelUpload:
        num_pages = -(-num_bytes // self.page_bytes)
        pages = range(start_page, start_page + num_pages)
        for touched in self.touched.values():
            assert not touched & set(pages), "a launched plan may still touch the upload's target"
        for i, page in enumerate(pages):
            self.memory[page] = (self.host[host_offset], i)
        upload = ModelUpload(self.clock() + self.upload_s, self.clock, pages)
        self.uploads = [u for u in self.uploads if not u.done()] + [upload]
        self.begun.append(upload)
        return upload

    def close(self) -> None:
        self.plans = []

    def _run(self, span: Span, is_new: bool) -> tuple[int, ...]:
        sequence, start = span.sequence, span.start
        end = start + span.num_tokens
        assert span.num_tokens >= 1 and len(span.pages) == -(-end // self.page_tokens)
        assert is_new or self.owner[span.row] is sequence, "a row changed hands unannounced"
        self.owner[span.row] = sequence
        namespace = _namespace(sequence)
        for position in range(min(start, len(sequence.tokens))):
            page = self.memory[span.pages[position // self.page_tokens]]
            found = page[position % self.page_tokens] if isinstance(page, dict) else page
            assert found == (namespace, sequence.tokens[position]), f"position {position}: {found}"
        for position in range(start, end):
            is_known = not span.token_on_device
            token = sequence.tokens[position] if is_known else self.last_token[span.row]
            index = span.pages[position // self.page_tokens]
            page = self.memory[index]
            slots = dict(page) if isinstance(page, dict) and position % self.page_tokens else {}
            slots[position % self.page_tokens] = (namespace, token)
            self.memory[index] = slots
        if not span.samples:
            return ()
        self.last_token[span.row] = self.draw(span)
        return (self.last_token[span.row],)

    def _adapter_pages(self, span: Span) -> range:
        ref = span.sequence.request.adapter
        if ref is None:
            assert span.adapter == NO_ADAPTER
            return range(0)
        start = self.table[span.adapter]
        end = start
        while end < self.num_pages and self.memory[end] == (ref.key, end - start):
            end += 1
        assert end > start, f"{ref.key} does not lie at page {start}"
        return range(start, end)


def _namespace(sequence: Sequence) -> object:
    request = sequence.request
    return (request.tenant.id, sequence.adapter_key, request.salt)
