"""What one router knows of loads: its own count and the replicas' reports."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.load import LoadTable


def test_a_report_older_than_what_was_sent_since_does_not_hide_it(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members({"a": 64})
    for _ in range(5):
        loads.sent("a")
    loads.report("a", 1)  # counted at the first one's admission
    assert loads.load("a") == 5


def test_a_report_shows_other_routers_requests_until_it_is_stale(clock) -> None:
    loads = LoadTable(clock, staleness_s=10)
    loads.set_members({"a": 64, "b": 64})
    loads.sent("a")
    loads.report("a", 20)
    assert (loads.load("a"), loads.total) == (20, 20)
    clock.advance(11)
    loads.expire()
    assert (loads.load("a"), loads.total) == (1, 1)
    loads.check()


def test_an_end_that_overtakes_its_own_report_leaves_nothing_behind(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members({"a": 64})
    loads.sent("a")
    loads.completed("a")
    loads.report("a", 1)
    loads.reported_completed("a")
    assert loads.load("a") == 0


def test_what_a_departed_replica_still_runs_counts_again_when_it_returns(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members({"a": 8, "b": 8})
    loads.sent("a")
    loads.sent("a")
    loads.set_members({"b": 8})
    assert loads.total == 0
    loads.completed("a")
    loads.set_members({"a": 8, "b": 8})
    assert loads.load("a") == 1
    loads.check()


def test_a_replica_that_is_down_has_no_room_until_it_reports(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members({"a": 8, "b": 8})
    loads.mark_down("a")
    assert loads.room("a") == 0
    assert loads.least() == "b"
    loads.report("a", 0)
    assert loads.room("a") == 8
    assert loads.least() == "a"
    loads.check()


def test_equals_are_told_apart_by_the_tie(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members(dict.fromkeys("abcd", 4))
    assert [loads.least(tie) for tie in range(6)] == ["a", "b", "c", "d", "a", "b"]
    loads.sent("b")
    assert [loads.least(tie) for tie in range(4)] == ["a", "c", "c", "d"]


def test_the_least_loaded_skips_the_full(clock) -> None:
    loads = LoadTable(clock)
    loads.set_members({"a": 1, "b": 9, "c": 9})
    for replica in "abbcccc":
        loads.sent(replica)
    assert loads.least() == "b"
    loads.set_members({"a": 1})
    assert loads.least() is None


class Events(RuleBasedStateMachine):
    """Any order of events keeps the sum, the maxima and the order of reports."""

    replicas = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loads = LoadTable(lambda: self.now)

    @rule(caps=st.dictionaries(replicas, st.integers(0, 5)))
    def members(self, caps: dict[str, int]) -> None:
        self.loads.set_members(caps)

    @rule(replica=replicas)
    def sent(self, replica: str) -> None:
        self.loads.sent(replica)

    @rule(replica=replicas)
    def completed(self, replica: str) -> None:
        self.loads.completed(replica)

    @rule(replica=replicas)
    def reported_completed(self, replica: str) -> None:
        self.loads.reported_completed(replica)

    @rule(replica=replicas, num=st.integers(0, 9))
    def report(self, replica: str, num: int) -> None:
        self.loads.report(replica, num)

    @rule(replica=replicas)
    def down(self, replica: str) -> None:
        self.loads.mark_down(replica)

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.loads.expire()

    @rule(tie=st.integers(0, 2**32))
    def least(self, tie: int) -> None:
        answer = self.loads.least(tie)
        open_ones = [r for r in "abcd" if self.loads.room(r)]
        assert (answer is None) == (not open_ones)
        if answer is not None:
            assert answer in open_ones
            assert self.loads.load(answer) == min(map(self.loads.load, open_ones))

    @invariant()
    def holds(self) -> None:
        self.loads.check()


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=30)
