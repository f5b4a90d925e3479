"""What the OpenAI endpoints do, without HTTP: a caller and a body in, a job at the replicas out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.ingress.auth import Caller
from deployments.ingress.catalog import Catalog, unknown_model
from deployments.ingress.expansion import ModelLimits, expand
from deployments.ingress.generation import Generation
from deployments.ingress.hints import Hints
from deployments.ingress.job import Job
from deployments.ingress.model_objects import BaseModelFacts, adapter_model, base_model
from deployments.ingress.prompts import Prompts
from deployments.ingress.replicas import Replicas
from deployments.ingress.token_limits import TokenLimits
from deployments.ingress.trials import Trials
from deployments.rest.answers import Answer, AnswerHead
from deployments.rest.openai_protocol import ChatBody, CompletionBody
from deployments.telemetry.logs import ContentLog
from deployments.telemetry.request_metrics import RequestMetrics, begin
from deployments.telemetry.tracing import RequestTrace, untraced
from engine.errors import InvalidRequest, Unavailable
from engine.types import AdapterRef, Tenant
from router.admission import Admission


@dataclass(frozen=True, slots=True)
class Sources:
    """Clocks and random numbers. wall: Unix seconds; monotonic: seconds; bits: random n-bit ints;
    word: an unguessable word of a request id."""

    wall: Callable[[], float]
    monotonic: Callable[[], float]
    bits: Callable[[int], int]
    word: Callable[[], str]


@dataclass(slots=True, eq=False)
class Serving:
    """Everything between an authenticated body and a handle call.

    timeout_s      from a request's arrival to its last token
    max_choices    sequences of one client request: prompts x n
    max_in_flight  client requests at once
    metrics        None: nothing is counted
    """

    catalog: Catalog
    prompts: Prompts
    replicas: Replicas
    admission: Admission
    trials: Trials
    tokens: TokenLimits
    base: BaseModelFacts
    limits: ModelLimits
    sources: Sources
    timeout_s: float
    max_choices: int
    max_in_flight: int
    metrics: RequestMetrics | None = None
    _in_flight: int = field(default=0, init=False)
    _hints: Hints = field(init=False)

    def __post_init__(self) -> None:
        self._hints = Hints(self.sources.monotonic)

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of this process's places for client requests. Raises Unavailable when all are
        taken."""
        if self._in_flight >= self.max_in_flight:
            raise Unavailable(
                f"This ingress has {self._in_flight} requests in progress and takes no more."
                " Try again shortly.",
                code="overloaded",
                retry_after_s=1.0,
            )
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    @asynccontextmanager
    async def job(
        self,
        request_id: str,
        caller: Caller,
        body: ChatBody | CompletionBody,
        session: str = "",
        trace: RequestTrace | None = None,
    ) -> AsyncIterator[Job]:
        """A client request, let in until the context ends. session: what the client calls its own,
        "" for what the body says.

        Admission comes before template and tokens, whose cost falls on every tenant. Raises
        NotFound, InvalidRequest, PermissionDenied, TooManyRequests, Unavailable.
        """
        trace = trace or untraced(request_id)
        with begin(self.metrics, caller.tenant) as meter:
            trace.identify(caller.as_tenant().id)
            with trace.step("resolve"):
                ref, tenant = await self._resolve(body.model, caller, session or body.session)
            trace.identify(tenant.id, ref)
            num = self._num_sequences(body)
            meter.resolved(ref, body.num_choices)
            with self.place(), self.admission.admit(tenant, num) as ticket:
                trace.event("admitted")
                if ref is not None and self._hints.see(ref.key):
                    self.replicas.hint(ref, tenant)
                watch = None if ref is None else self.trials.watch(body.model, tenant.id, ref)
                generation = await self._generation(trace, body, tenant, ref, self.timeout_s)
                generation = replace(generation, meter=meter)
                with trace.step("quota"):
                    num_prompt = generation.num_prompt // body.num_choices
                    tokens = await self.tokens.admit(tenant, num_prompt)
                answer = Answer(self._head(request_id, ref, body), num)
                content = ContentLog(body.asked()) if caller.log_content else None
                yield Job(generation, answer, ticket, tokens, watch, content)

    async def answer_as(
        self,
        request_id: str,
        tenant: Tenant,
        ref: AdapterRef,
        body: ChatBody | CompletionBody,
        timeout_s: float,
        *,
        own: bool,
    ) -> dict[str, Any]:
        """The whole answer of the version `ref`, whatever names stand for. It takes a place of this
        process; `own`: its tenant asks, so it counts against the tenant's bounds as any request of
        its own. Raises as `job`."""
        num = self._num_sequences(body)
        with self.place(), ExitStack() as held:
            ticket = held.enter_context(self.admission.admit(tenant, num)) if own else None
            trace = untraced(request_id)
            generation = await self._generation(trace, body, tenant, ref, timeout_s)
            answer = Answer(self._head(request_id, ref, body), num)
            if ticket is not None:
                tokens = await self.tokens.admit(tenant, generation.num_prompt // body.num_choices)
                return await Job(generation, answer, ticket, tokens, None, None).whole()
            async with aclosing(generation.events()) as batches:
                async for batch in batches:
                    answer.add(batch)
            return answer.whole()

    async def _generation(
        self,
        trace: RequestTrace,
        body: ChatBody | CompletionBody,
        tenant: Tenant,
        ref: AdapterRef | None,
        timeout_s: float,
    ) -> Generation:
        requests = expand(
            body,
            await self.prompts.encode(body, trace),
            tenant=tenant,
            ref=ref,
            limits=self.limits,
            draw_seed=lambda: self.sources.bits(64),
            request_id=trace.about["request_id"],
        )
        return Generation(
            replicas=self.replicas,
            requests=requests,
            ref=ref,
            timeout_s=timeout_s,
            clock=self.sources.monotonic,
            nonce=self.sources.word,
            trace=trace,
        )

    def models(self, caller: Caller) -> list[dict[str, Any]]:
        """The base, then the caller's adapters (an admin's: all)."""
        tenant = None if caller.tenant is None else caller.tenant.id
        found = ((r, r.ref) for r in self.catalog.adapters(tenant))
        adapters = (adapter_model(self.base, r, v) for r, v in found if v is not None)
        return [base_model(self.base), *adapters]

    async def model(self, name: str, caller: Caller) -> dict[str, Any]:
        """Raises NotFound, in the words for every unknown model."""
        if name == self.base.name:
            return base_model(self.base)
        tenant = caller.as_tenant()
        ref = await self.catalog.resolve(name, tenant.id)
        record = self.catalog.adapter(tenant.id, ref.name)
        if record is None:
            raise unknown_model(name)
        return {**adapter_model(self.base, record, ref), "id": name}

    async def ready(self, timeout_s: float) -> int:
        """How many replicas can answer. Raises Unavailable when none can."""
        num = sum(1 for s in await self.replicas.statuses(timeout_s) if s.get("ready"))
        if num == 0:
            raise Unavailable("No replica can answer yet.", code="not_ready", retry_after_s=1.0)
        return num

    async def _resolve(
        self, model: str, caller: Caller, session: str
    ) -> tuple[AdapterRef | None, Tenant]:
        """The base's name is matched first, whole: hub names contain slashes."""
        tenant = caller.as_tenant()
        if model == self.base.name:
            return None, tenant
        ref = await self.catalog.resolve(model, tenant.id, session)
        if ref.base_revision != self.base.revision:
            raise Unavailable(
                f"The model '{model[:200]}' was published for another revision of the base than"
                " the one that is served. Publish it again.",
                code="base_mismatch",
            )
        return ref, tenant

    def _num_sequences(self, body: ChatBody | CompletionBody) -> int:
        num = body.num_prompts * body.num_choices
        if num > self.max_choices:
            raise InvalidRequest(
                f"{body.num_prompts} prompts x n={body.num_choices} are more than"
                f" {self.max_choices} sequences in one request. Split it.",
                param="n" if body.num_choices > 1 else "prompt",
            )
        return num

    def _head(
        self, request_id: str, ref: AdapterRef | None, body: ChatBody | CompletionBody
    ) -> AnswerHead:
        is_chat = isinstance(body, ChatBody)
        return AnswerHead(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id}",
            created=int(self.sources.wall()),
            model=body.model,
            fingerprint=self._fingerprint(ref),
            chat=is_chat,
            num_choices=body.num_choices,
            with_usage=bool(body.stream) and body.wants_usage_chunk,
        )

    def _fingerprint(self, ref: AdapterRef | None) -> str:
        return f"fp_{(self.base.revision if ref is None else ref.digest)[:12]}"
