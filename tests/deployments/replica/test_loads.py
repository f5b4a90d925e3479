"""Loads survive their loader, and only the version that kills it is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.replica.loads import Loads
from engine.errors import AdapterUnavailable
from engine.messages import Load
from engine.types import AdapterRef


def load(load_id: int, name: str) -> Load:
    ref = AdapterRef("acme", name, f"digest-{name}", "rev", (8,), 64, 128, "file:///x")
    return Load(load_id, ref, 0, 128)


def test_nothing_is_sent_without_a_loader() -> None:
    loads = Loads(max_kills=2)
    assert loads.add(load(1, "a")) is None
    assert loads.take() == []
    loads.started()
    assert loads.take() == [load(1, "a")]
    assert loads.take() == []
    loads.done(1)
    assert len(loads) == 0
    loads.check()


def test_death_tries_each_suspect_alone_and_refuses_the_one_that_kills_again() -> None:
    loads = Loads(max_kills=2)
    loads.started()
    for number, name in enumerate(["good", "bad", "fine"]):
        loads.add(load(number, name))
    assert len(loads.take()) == 3
    assert loads.died() == []
    loads.add(load(7, "late"))
    loads.started()

    assert [x.ref.name for x in loads.take()] == ["good"]
    assert loads.take() == []
    loads.done(0)
    assert [x.ref.name for x in loads.take()] == ["bad"]
    (refusal,) = loads.died()
    assert refusal.load_id == 1 and refusal.permanent
    assert refusal.error is not None and refusal.error.code == "adapter_kills_loader"

    loads.started()
    assert [x.ref.name for x in loads.take()] == ["fine"]
    loads.done(2)
    assert [x.ref.name for x in loads.take()] == ["late"]
    loads.check()

    again = loads.add(load(9, "bad"))
    assert again is not None and again.load_id == 9 and again.permanent


def test_no_loader_to_be_had_answers_all() -> None:
    loads = Loads(max_kills=2)
    loads.started()
    loads.add(load(1, "a"))
    loads.take()
    loads.died()
    loads.add(load(2, "b"))
    answers = loads.fail(AdapterUnavailable("gone").info())
    assert sorted(a.load_id for a in answers) == [1, 2]
    assert all(a.error is not None and not a.permanent for a in answers)
    assert len(loads) == 0
    loads.check()


@given(st.data(), st.sets(st.sampled_from("abcdef")), st.integers(1, 3))
def test_every_load_is_answered_once_and_only_killers_are_refused(
    data: st.DataObject, killers: set[str], max_kills: int
) -> None:
    """A loader that dies whenever it works on a killer, and otherwise answers in any order."""
    loads = Loads(max_kills)
    loads.started()
    names = data.draw(st.lists(st.sampled_from("abcdef"), max_size=12))
    pending = [load(i, name) for i, name in enumerate(names)]
    answered: dict[int, bool] = {}
    running: list[Load] = []
    deaths = 0
    while pending or len(loads):
        if pending and data.draw(st.booleans()):
            new = pending.pop(0)
            refusal = loads.add(new)
            if refusal is not None:
                assert new.ref.name in killers
                answered[new.load_id] = True
        running += loads.take()
        loads.check()
        if any(x.ref.name in killers for x in running) and data.draw(st.booleans()):
            deaths += 1
            running = []
            for refusal in loads.died():
                assert refusal.load_id not in answered
                answered[refusal.load_id] = True
            loads.started()
        elif harmless := [x for x in running if x.ref.name not in killers]:
            done = data.draw(st.sampled_from(harmless))
            running.remove(done)
            loads.done(done.load_id)
            assert done.load_id not in answered
            answered[done.load_id] = False
        loads.check()
    assert sorted(answered) == list(range(len(names)))
    assert all(refused == (names[i] in killers) for i, refused in answered.items())
    assert deaths <= len(names) * (max_kills + 1)
