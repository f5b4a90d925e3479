"""How a run goes, in numbers that are cheap to keep: what its progress shows."""

from __future__ import annotations

from collections import Counter, deque

from loadgen.client.outcome import OK, UNFINISHED, Outcome

RECENT = 500


class Tally:
    """Counts while it runs. `recent_*`: of the last `RECENT` requests that ended, seconds."""

    def __init__(self, num_scheduled: int) -> None:
        self.num_scheduled = num_scheduled
        self.num_sent = 0
        self.num_ended = 0
        self.num_tokens = 0
        self.by_status: Counter[str] = Counter()
        self.recent_first_s: deque[float] = deque(maxlen=RECENT)
        self.recent_lag_s: deque[float] = deque(maxlen=RECENT)

    @property
    def num_running(self) -> int:
        return self.num_sent - self.num_ended

    @property
    def num_failed(self) -> int:
        return self.num_ended - self.by_status[OK] - self.by_status[UNFINISHED]

    def sent(self) -> None:
        self.num_sent += 1

    def ended(self, outcome: Outcome) -> None:
        self.num_ended += 1
        self.num_tokens += outcome.completion_tokens
        self.by_status[outcome.status] += 1
        self.recent_lag_s.append(outcome.lag_s)
        if outcome.first_s is not None:
            self.recent_first_s.append(outcome.first_s)
