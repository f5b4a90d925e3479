"""What a plan has brought: tokens appended, accounts settled, ends. Standard library only."""

from __future__ import annotations

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.counters import Counters
from engine.holdings import Holdings
from engine.messages import SequenceOutput
from engine.plan import Span, StepResult
from engine.quarantine import Quarantine
from engine.requests import Requests
from engine.sequence import Sequence
from engine.types import FinishReason


class Settling:
    """The commit half of a step: `Scheduler.schedule` is the other."""

    def __init__(
        self,
        accounts: Accounts,
        cache: AdapterCache,
        requests: Requests,
        holdings: Holdings,
        counters: Counters,
        quarantine: Quarantine,
    ) -> None:
        self._accounts = accounts
        self._cache = cache
        self._requests = requests
        self._holdings = holdings
        self._counters = counters
        self._quarantine = quarantine
        self._page_tokens = holdings.page_tokens

    def settle(self, result: StepResult, now: float) -> list[SequenceOutput]:
        """Rows that have ended since, or were preempted, drop their tokens."""
        plan = result.plan
        amounts = self._accounts.prices.amounts(plan, result.seconds)
        outputs: list[SequenceOutput] = []
        decoded: list[str] = []
        served = self._counters.served
        plan_id, page_tokens, failed = plan.id, self._page_tokens, any(result.failed)
        for i, (span, tokens) in enumerate(zip(plan.spans, result.tokens, strict=True)):
            sequence, row, start, num_tokens, _, samples, _, _ = span
            if sequence.row != row or plan_id < sequence.first_plan:
                continue
            if failed and result.failed[i]:
                outputs += self._fail(sequence, now)
                continue
            request = sequence.request
            # Nearly every row of nearly every step: one more token, and nothing else happens.
            if (
                samples
                and num_tokens == 1
                and amounts is None
                and start >= sequence.num_prompt
                and len(tokens) == 1
                and len(sequence.tokens) + 1 < sequence.max_length
                and (start + 1) % page_tokens
                and tokens[0] not in request.stop_token_ids
            ):
                sequence.tokens.append(tokens[0])
                sequence.num_pending -= 1
                decoded.append(request.id)
                tenant = request.tenant.id
                served[tenant] = served.get(tenant, 0.0) + 1
                outputs.append(SequenceOutput(request.id, tokens))
                continue
            amount = None if amounts is None else amounts[i]
            if start < sequence.num_prompt:
                num_read = min(num_tokens, sequence.num_prompt - start)
                self._accounts.computed(request.id, num_read, amount)
            if samples:
                outputs.append(self._accept(span, tokens, amount, now))
        self._accounts.produced_by_each(decoded)
        self._counters.output_tokens += len(decoded)
        return outputs

    def _accept(
        self, span: Span, tokens: tuple[int, ...], amount: float | None, now: float
    ) -> SequenceOutput:
        """Appends what a row has drawn, up to where the sequence ends."""
        sequence, request = span.sequence, span.sequence.request
        num_left = sequence.max_length - len(sequence.tokens)
        accepted = tokens if len(tokens) <= num_left else tokens[:num_left]
        finish = FinishReason.LENGTH if len(accepted) == num_left else None
        for i, token in enumerate(accepted):
            if token in request.stop_token_ids:
                accepted, finish = accepted[:i], FinishReason.STOP
                break
        sequence.num_pending -= 1
        sequence.tokens += accepted
        if amount is not None:
            # What reading the prompt has cost is settled with it; reading on after a preemption
            # isn't charged, but for the token that comes of it.
            amount = 0.0 if span.start < sequence.num_prompt else amount / span.num_tokens
        self._accounts.produced(request.id, len(tokens), amount)
        self._counters.output(request.tenant.id, len(accepted))
        num_known = span.start + span.num_tokens
        if num_known // self._page_tokens > len(sequence.nodes):
            self._holdings.keep(sequence, num_known)
        if finish is not None:
            return self._requests.finish(sequence, finish, now, tokens=accepted)
        return SequenceOutput(request.id, accepted, num_cached=sequence.report_cached())

    def _fail(self, sequence: Sequence, now: float) -> list[SequenceOutput]:
        """Its row isn't finite: it ends, and with its adapter's last chance those that wait for the
        adapter. Other rows that use it may be sound, and go on."""
        ref = sequence.request.adapter
        error, is_last = self._quarantine.fault(ref, now)
        outputs = [self._requests.finish(sequence, FinishReason.ERROR, now, error)]
        if ref is not None and is_last:
            self._cache.refuse(ref, error, now)
            outputs += self._requests.end_waiting(ref.key, error, now)
        return outputs
