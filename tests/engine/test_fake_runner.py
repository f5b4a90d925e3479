"""The runner without a model: when its steps end and what it draws."""

from __future__ import annotations

from dataclasses import replace

from engine.fake_runner import FIRST_TOKEN, FakeRunner
from engine.plan import NO_ADAPTER, Span, StepPlan
from engine.sequence import Sequence
from engine.types import Request, Tenant
from tests.support.virtual import VirtualClock
from tests.support.world import config


def runner(clock: VirtualClock, upload_s: float = 0.0) -> FakeRunner:
    settings = config()
    settings = replace(settings, model=replace(settings.model, fake_step_s=0.01))
    return FakeRunner(settings, clock, clock.sleep, upload_s)


def span(start: int, num_tokens: int, samples: bool, stop: tuple[int, ...] = ()) -> Span:
    request = Request("r", Tenant("t"), None, (1, 2, 3), 10, stop_token_ids=stop)
    sequence = Sequence(request, 0.0)
    return Span(sequence, 0, start, num_tokens, NO_ADAPTER, samples, False, (1,))


def test_steps_run_one_after_another() -> None:
    clock = VirtualClock()
    fake = runner(clock)
    first = fake.launch(StepPlan(0, (span(0, 3, True),)))
    second = fake.launch(StepPlan(1, (span(3, 1, True),)))
    assert not first.ready()
    first.wait()
    assert clock() == 0.01 and first.ready() and not second.ready()
    assert second.wait().seconds == 0.01
    assert clock() == 0.02


def test_a_token_tells_its_position_and_is_never_a_stop_token() -> None:
    fake = runner(VirtualClock())
    plan = StepPlan(0, (span(0, 3, True), span(0, 2, False), span(0, 3, True, (FIRST_TOKEN + 3,))))
    assert fake.launch(plan).wait().tokens == ((FIRST_TOKEN + 3,), (), (FIRST_TOKEN + 4,))


def test_an_upload_takes_its_time() -> None:
    clock = VirtualClock()
    upload = runner(clock, upload_s=0.5).upload(0, 100, 1)
    assert not upload.done()
    clock.sleep(0.5)
    assert upload.done()
