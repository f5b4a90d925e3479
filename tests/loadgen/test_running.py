"""Runs against a server of scripted streams: what is counted, told apart and timed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uvloop

from loadgen.client.faults import Fault, FaultError
from loadgen.client.outcome import Outcome
from loadgen.client.prompts import Prompts
from loadgen.client.roster import Binding, Member, Roster, RosterError, Target
from loadgen.client.runner import Result, Runner, session
from loadgen.client.stream import Endpoint
from loadgen.workloads.arrival import Arrival, Schedule
from tests.support.stream_server import serving

FIRST_S, GAP_S = 0.05, 0.02
TICK_S = 0.002
"""uvloop's timers know whole milliseconds: what is due may go, or end, so much early."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FIRST_S, GAP_S) as url:
        yield url


def schedule(arrivals: Sequence[Arrival]) -> Schedule:
    return Schedule("test", 1, {}, 1.0, tuple(arrivals))


def arrival(adapter: str, time_s: float = 0.0, tokens: int = 5, session: str = "") -> Arrival:
    return Arrival(time_s, "t", adapter, 8, tokens, session)


def run(
    url: str, arrivals: Sequence[Arrival], stop_after: int | None = None, **options: object
) -> Result:
    """stop_after: so many requests have ended."""
    binding = Binding({("t", a.adapter): Target("key", f"m/{a.adapter}") for a in arrivals})
    endpoint = Endpoint(url, timeout_s=float(str(options.pop("timeout_s", 30.0))))

    async def all_of_it() -> Result:
        runner = Runner(schedule(arrivals), binding, endpoint, time.monotonic, **options)  # type: ignore[arg-type]
        stopping = asyncio.create_task(stop(runner, stop_after))
        async with session() as http:
            result = await runner.run(http, None)
        stopping.cancel()
        return result

    return uvloop.run(all_of_it())


async def stop(runner: Runner, stop_after: int | None) -> None:
    while stop_after is None or runner.tally.num_ended < stop_after:
        await asyncio.sleep(0.01)
    runner.stop()


def only(result: Result) -> Outcome:
    (outcome,) = result.outcomes
    return outcome


def test_a_good_answer(url: str) -> None:
    outcome = only(run(url, [arrival("fine")]))
    assert (outcome.status, outcome.model) == ("ok", "m/fine")
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.counted) == (11, 5, "usage")
    assert len(outcome.chunk_s) == 5 and outcome.chunk_chars == (5,) * 5
    assert outcome.first_s == outcome.chunk_s[0] >= FIRST_S - TICK_S
    assert outcome.end_s >= outcome.chunk_s[-1] >= FIRST_S + 4 * GAP_S - TICK_S
    assert [tokens for _, tokens in outcome.served()] == [1] * 5


def test_errors_are_told_apart(url: str) -> None:
    result = run(url, [arrival("busy"), arrival("cut"), arrival("event"), arrival("fine")])
    busy, cut, event, fine = result.outcomes
    assert (busy.status, busy.retry_after_s, busy.detail) == ("429 tenant_busy", 7, "Too many.")
    assert busy.first_s is None and busy.completion_tokens == 0
    assert cut.status == "cut" and cut.first_s is not None
    assert (cut.completion_tokens, cut.counted) == (2, "chunks")
    assert (event.status, event.detail) == ("stream core_died", "It broke.")
    assert event.completion_tokens == 2 and fine.ok


def test_nobody_there() -> None:
    assert only(run("http://127.0.0.1:9/v1", [arrival("fine")])).status == "connect"


def test_a_timeout(url: str) -> None:
    outcome = only(run(url, [arrival("fine", tokens=5000)], timeout_s=0.5))
    assert outcome.status == "timeout" and outcome.completion_tokens < 5000
    assert outcome.end_s >= 0.5 - TICK_S


def test_arrivals_never_wait_for_answers(url: str) -> None:
    """Forty requests of 0.45 s each, 5 ms apart: a closed loop of one would take 18 s."""
    arrivals = [arrival("fine", round(0.005 * i, 6), tokens=21) for i in range(40)]
    result = run(url, arrivals)
    assert all(o.ok for o in result.outcomes)
    assert 0.64 <= result.wall_s < 5


def test_latencies_are_from_when_a_request_was_due(url: str) -> None:
    """The loop is held up for 0.4 s: every request due in it says so."""
    held: list[float] = []

    async def hold(runner: Runner) -> None:
        while runner.tally.num_sent == 0:
            await asyncio.sleep(0.01)
        held.append(runner.now_s())
        time.sleep(0.4)
        held.append(runner.now_s())

    async def held_up() -> Result:
        arrivals = [arrival("fine", round(0.05 * i, 6), tokens=1) for i in range(40)]
        binding = Binding({("t", "fine"): Target("", "m/fine")})
        runner = Runner(schedule(arrivals), binding, Endpoint(url), time.monotonic)
        holding = asyncio.create_task(hold(runner))
        async with session() as http:
            result = await runner.run(http, None)
        await holding
        return result

    outcomes = uvloop.run(held_up()).outcomes
    begin, end = held
    due_in_it = [o for o in outcomes if begin < o.due_s < end]
    assert len(due_in_it) >= 4
    for outcome in due_in_it:
        assert outcome.lag_s >= end - outcome.due_s - TICK_S
        assert outcome.first_s is not None and outcome.first_s >= outcome.lag_s + FIRST_S - TICK_S


def test_stopping_early_keeps_what_was_seen(url: str) -> None:
    arrivals = [arrival("fine", tokens=t) for t in (2, 2000, 20)] + [arrival("fine", 50)]
    result = run(url, arrivals, stop_after=2)
    assert result.interrupted and result.wall_s < 10
    first, long, third, last = result.outcomes
    assert first.ok and third.ok and last.status == "not sent"
    assert long.status == "unfinished" and 3 < long.completion_tokens < 2000


def test_what_still_runs_at_the_end_is_left(url: str) -> None:
    result = run(url, [arrival("fine", tokens=400)], drain_s=0.2)
    assert not result.interrupted
    assert only(result).status == "unfinished"
    assert 1.1 <= result.wall_s < 5


def test_faults_run_at_their_time(url: str, tmp_path: Path) -> None:
    file = tmp_path / "touched"
    faults = [Fault.parse(f"0.2: touch {file} && echo done"), Fault.parse("0.1:exit 3")]
    faults.append(Fault.parse("0.3:sleep 600"))
    result = run(url, [arrival("fine", tokens=200)], faults=faults)
    good, bad, cut = (next(f for f in result.faults if f.command == a.command) for a in faults)
    assert (bad.exit_code, good.exit_code, good.output) == (3, 0, "done\n")
    assert bad.at_s >= 0.1 - TICK_S and good.at_s >= 0.2 - TICK_S
    assert file.exists()
    assert cut.exit_code is None and "still ran when the run ended" in cut.output
    with pytest.raises(FaultError, match="SECONDS:COMMAND"):
        Fault.parse("kill everything")


def test_prompts_have_their_length_and_beginnings_of_their_own() -> None:
    prompts, again = Prompts(3), Prompts(3)
    texts = [prompts.text(i, "", 50) for i in range(300)]
    assert texts == [again.text(i, "", 50) for i in range(300)]
    assert all(len(t.split()) == 50 for t in texts)
    assert max(Counter(tuple(t.split()[:4]) for t in texts).values()) <= 2
    assert len(prompts.text(1, "", 9000).split()) == 9000
    short, long = prompts.text(5, "s1", 20), prompts.text(9, "s1", 60)
    assert long.startswith(short) and not prompts.text(9, "s2", 60).startswith(short)


def test_a_roster_binds_by_name_then_in_order(tmp_path: Path) -> None:
    roster = Roster((Member("b", "kb", ("b/x", "b/y")), Member("load-a", "ka", ("load-a/one",))))
    path = tmp_path / "roster.json"
    roster.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Roster.read(path) == roster
    found = roster.bind({"a": ["one"], "b": ["y", "z"]}, fold=False).targets
    assert found["a", "one"] == Target("ka", "load-a/one")
    assert found["b", "y"] == Target("kb", "b/y")
    assert found["b", "z"] == Target("kb", "b/y")  # the second, in order
    with pytest.raises(RosterError, match="3 models of b, the roster 2"):
        roster.bind({"b": ["p", "q", "r"]}, fold=False)
    with pytest.raises(RosterError, match="3 tenants, the roster 2"):
        roster.bind({t: ["p"] for t in "cde"}, fold=False)
    assert len(roster.bind({t: ["p"] for t in "cde"}, fold=True).targets) == 3
