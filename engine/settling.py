"""What a plan has brought: tokens appended, accounts settled, ends. Standard library only."""

from __future__ import annotations

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.holdings import Holdings
from engine.messages import SequenceOutput, new_output
from engine.plan import Span, StepResult
from engine.quarantine import Quarantine
from engine.requests import Requests
from engine.sequence import Sequence
from engine.stepcost import StepCost, divided
from engine.types import FinishReason

_NOTHING_ELSE = SequenceOutput("", ())[2:]


class Settling:
    """The commit half of a step: `Scheduler.schedule` is the other."""

    def __init__(
        self,
        accounts: Accounts,
        cache: AdapterCache,
        cost: StepCost,
        requests: Requests,
        holdings: Holdings,
        quarantine: Quarantine,
    ) -> None:
        self._accounts = accounts
        self._cache = cache
        self._cost = cost
        self._requests = requests
        self._holdings = holdings
        self._quarantine = quarantine
        self._page_tokens = holdings.page_tokens

    def settle(self, result: StepResult, now: float) -> list[SequenceOutput]:
        """Rows that have ended since, or were preempted, drop their tokens."""
        plan = result.plan
        plan_id, failed = plan.id, any(result.failed)
        seconds, size, prices = result.seconds, plan.size, self._accounts.prices
        shares = divided(seconds, len(plan.spans), size.num_tokens, self._cost.token_s)
        row_s, token_s = shares
        price = prices.step(plan, seconds, shares)
        row_price, _, page_price = price
        outputs: list[SequenceOutput] = []
        for i, (span, tokens) in enumerate(zip(plan.spans, result.tokens, strict=True)):
            sequence, row, start, num_tokens, _, _, _, pages = span
            sequence.usage.device_s += row_s + token_s * (num_tokens - 1)
            if sequence.row != row or plan_id < sequence.first_plan:
                self._requests.billed(sequence)
                continue
            # Nearly every row of nearly every step: one more token, and nothing else happens.
            if start < sequence.quiet_to and not failed and tokens[0] not in sequence.stops:
                sequence.tokens.append(tokens[0])
                sequence.num_pending -= 1
                sequence.owed += row_price + page_price * len(pages)
                outputs.append(new_output((sequence.request.id, tokens, *_NOTHING_ELSE)))
                continue
            if failed and result.failed[i]:
                outputs += self._fail(sequence, now)
                continue
            if start < sequence.num_prompt:
                num_read = min(num_tokens, sequence.num_prompt - start)
                amount = price.of(span) if prices.is_measured else None
                self._accounts.computed(sequence.id, num_read, amount)
            elif span.samples:
                # What reading the prompt has cost is settled with it; reading on after a preemption
                # isn't charged, but for the token that comes of it.
                sequence.owed += price.of(span) / num_tokens
            if span.samples:
                outputs.append(self._accept(span, tokens, now))
        return outputs

    def _accept(self, span: Span, tokens: tuple[int, ...], now: float) -> SequenceOutput:
        """Appends what a row has drawn, up to where the sequence ends."""
        sequence, stops = span.sequence, span.sequence.stops
        num_left = sequence.max_length - len(sequence.tokens)
        accepted = tokens if len(tokens) <= num_left else tokens[:num_left]
        finish = FinishReason.LENGTH if len(accepted) == num_left else None
        for i, token in enumerate(accepted):
            if token in stops:
                accepted, finish = accepted[:i], FinishReason.STOP
                break
        sequence.num_pending -= 1
        sequence.tokens += accepted
        self._requests.produced(sequence, len(tokens) - len(accepted))
        num_known = span.start + span.num_tokens
        if num_known // self._page_tokens > len(sequence.nodes):
            self._holdings.keep(sequence, num_known)
        if finish is not None:
            return self._requests.finish(sequence, finish, now, tokens=accepted)
        sequence.quiet_to = 0
        if num_known >= sequence.num_prompt:
            page_end = (num_known // self._page_tokens + 1) * self._page_tokens
            sequence.quiet_to = min(page_end - 1, sequence.max_length - 2)
        return SequenceOutput(sequence.id, accepted, num_cached=sequence.report_cached())

    def _fail(self, sequence: Sequence, now: float) -> list[SequenceOutput]:
        """Its row isn't finite: it ends, and with its adapter's last chance those that wait for the
        adapter. Other rows that use it may be sound, and go on."""
        ref = sequence.request.adapter
        error, is_last = self._quarantine.fault(ref, now)
        outputs = [self._requests.finish(sequence, FinishReason.ERROR, now, error)]
        if ref is not None and is_last:
            self._cache.obstacles.refuse(ref, error, now)
            outputs += self._requests.end_waiting(ref.key, error, now)
        return outputs
