"""What an adapter's names stand for, through every order of publish, promote and retire."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.registry.adapter_record import (
    MAX_CONDEMNED,
    AdapterRecord,
)
from deployments.registry.alias import Alias, check_alias, is_selector, position
from deployments.registry.retention import COLLECTED
from deployments.registry.upgrade import upgraded
from deployments.registry.version_record import Condemned, Probe, VersionRecord
from engine.errors import Conflict, InvalidRequest, LoraplexError, NotFound
from engine.types import AdapterRef


def digest(number):
    return f"{number:064x}"


def version(number=1, **changes):
    ref = AdapterRef("acme", "bot", digest(number), "rev", (4, 8), 4096, 9000, "file:///x")
    modules = ("model.layers.*.self_attn.q_proj",)
    return VersionRecord(
        **{
            "ref": ref,
            "published_s": 1.5,
            "by": "admin",
            "base": "base/model",
            "asserted_by": None,
            "modules": modules,
            "num_modules": 30,
            "warnings": ("odd",),
            **changes,
        }
    )


def published(*numbers):
    record = AdapterRecord("acme", "bot")
    for number in numbers:
        record = record.with_version(version(number)).promoted(digest(number))
        record.check()
    return record


def through_json(record):
    return AdapterRecord.from_value(json.loads(json.dumps(record.to_value())))


def never():
    raise AssertionError("nobody asked where this stands")


def test_records_survive_json():
    record = published(1, 2).with_canary(digest(1), 0.05).promoted(digest(1), "beta")
    probed = version(3, probes=(Probe("hi", 8, "yo", "yo!"),), asserted_by="eve")
    record = record.with_version(probed).retired_version(digest(3), 9.0, "bob").collected(0, 9.0)
    assert record.condemned and through_json(record) == record


def test_a_record_of_the_release_before_reads_as_what_it_meant():
    """In version 1 a name stood for its newest version: those before are what it goes back to."""
    versions = [version(n).to_value() for n in (1, 2, 3)]
    versions[0].update(retired_s=5.0, retired_by="bob")
    old = {"v": 1, "tenant": "acme", "name": "bot", "current": digest(3), "versions": versions}
    record = AdapterRecord.from_value(upgraded(old))
    record.check()
    assert record.current == digest(3) and record.rolled_back().current == digest(2)
    retired = {**old, "current": None, "versions": versions[:1]}
    gone = AdapterRecord.from_value(upgraded(retired))
    assert gone.status == "retired" and gone.version(digest(1)).retired_by == "bob"
    assert upgraded(record.to_value()) == record.to_value()
    for other in (1, 3):
        with pytest.raises(ValueError, match=f"record version {other}"):
            AdapterRecord.from_value({**record.to_value(), "v": other})


def test_the_bare_name_is_production():
    record = published(1, 2)
    assert record.status == "published" and record.ref.digest == digest(2)
    for selector in (None, "production", digest(2)):
        assert record.resolve(selector, never).digest == digest(2)
    assert record.resolve(digest(1), never).digest == digest(1)
    assert record.resolve(digest(2)[:20], never) is None  # both versions begin so
    assert record.resolve("canary", never) is None
    assert record.resolve("beta", never) is None


def test_a_canary_takes_its_share_first():
    record = published(1).with_version(version(2)).with_canary(digest(2), 0.05)
    assert record.resolve(None, lambda: 0.049).digest == digest(2)
    assert record.resolve(None, lambda: 0.05).digest == digest(1)
    assert record.resolve("production", lambda: 0.01).digest == digest(2)
    assert record.resolve("canary", never).digest == digest(2)
    over = record.promoted(digest(2))
    assert over.aliases["production"] == Alias(digest(2), history=(digest(1),), trial=1)
    assert record.rolled_back("canary").aliases["production"] == Alias(digest(1), trial=1)
    later = record.rolled_back("canary").with_canary(digest(2), 0.5, at_s=9.5)
    assert later.aliases["production"].trial == 9500
    assert later.with_canary(digest(2), 0.6, at_s=11).aliases["production"].trial == 9500
    with pytest.raises(Conflict, match="stands for"):
        record.with_canary(digest(1), 0.5)
    for weight in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidRequest):
            record.with_canary(digest(2), weight)


@settings(max_examples=30)
@given(st.text(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_widening_a_canary_moves_nobody_back(session, one, two):
    at = position("acme", "bot", None, session)
    assert 0 <= at < 1 and at == position("acme", "bot", "production", session)
    small, large = sorted((one, two))
    record = published(1).with_version(version(2))
    in_small = record.with_canary(digest(2), small).resolve(None, lambda: at).digest == digest(2)
    in_large = record.with_canary(digest(2), large).resolve(None, lambda: at).digest == digest(2)
    assert in_large or not in_small


def test_sessions_spread_evenly_and_each_adapter_draws_its_own():
    here = [position("acme", "bot", None, f"s{n}") for n in range(2000)]
    there = [position("acme", "other", None, f"s{n}") for n in range(2000)]
    assert 140 <= sum(at < 0.1 for at in here) <= 260  # 200 expected, sigma 13.4
    assert 8 <= sum(a < 0.1 and b < 0.1 for a, b in zip(here, there, strict=True)) <= 40


def test_rolling_back_goes_one_step_each_time():
    record = published(1, 2, 3)
    back = record.rolled_back()
    assert back.current == digest(2) and back.rolled_back().current == digest(1)
    with pytest.raises(Conflict, match="Promote a version"):
        back.rolled_back().rolled_back()
    skipping = record.retired_version(digest(2), 9.0, "bob").rolled_back()
    assert skipping.current == digest(1)
    assert record.promoted(digest(1)).rolled_back().current == digest(3)
    with pytest.raises(NotFound):
        record.rolled_back("beta")


def test_aliases_come_and_go():
    record = published(1, 2).promoted(digest(1), "beta")
    assert record.resolve("beta", never).digest == digest(1)
    assert record.without_alias("beta").aliases.keys() == {"production"}
    with pytest.raises(Conflict, match="Retire the adapter"):
        record.without_alias("production")
    with pytest.raises(Conflict, match="Promote another version"):
        record.retired_version(digest(1), 9.0, "bob")
    for number in range(30):
        record = record.promoted(digest(1), f"x{number}")
    with pytest.raises(InvalidRequest, match="32 aliases"):
        record.promoted(digest(1), "more")


@pytest.mark.parametrize("alias", ["", "a" * 64, "A", "-x", "../x", "deadbeef", "1" * 12, "canary"])
def test_what_is_no_alias(alias):
    with pytest.raises(InvalidRequest):
        check_alias(alias)


@pytest.mark.parametrize("alias", ["beta", "deadbee", "2024.1", "v1_x-y", "deadbeefg"])
def test_what_is_one(alias):
    assert check_alias(alias) == alias and is_selector(alias)


def test_retired_versions_say_so():
    record = published(1, 2).retired_version(digest(1), 9.0, "bob")
    with pytest.raises(Conflict, match="is retired"):
        record.find(digest(1))
    assert record.find("production").ref.digest == digest(2)
    assert record.find(digest(2)).ref.digest == digest(2)
    with pytest.raises(NotFound):
        record.find("f" * 10)
    assert [v.ref.digest for v in record.tombstones(digest(1))] == [digest(1)]
    assert record.tombstones(digest(1)[:12]) == []  # a live one begins so too
    assert record.tombstones("production") == record.tombstones("f" * 8) == []
    gone = record.retired(9.5, "eve")
    assert len(gone.tombstones()) == len(gone.tombstones(digest(1)[:12])) == 2
    assert gone.status == "retired" and gone.ref is None
    assert [(v.retired_s, v.retired_by) for v in gone.versions] == [(9.0, "bob"), (9.5, "eve")]


# C-VERSION-LEAK
def test_five_hundred_versions_leave_a_small_record():
    """C-VERSION-LEAK."""
    record = published(1).promoted(digest(1), "pinned")
    for number in range(2, 502):
        record = record.with_version(version(number)).promoted(digest(number))
        record = record.collected(10, float(number))
        record.check()
    live = [v.ref.digest for v in record.versions if v.live]
    # The ten newest without a name, production, what it goes back to, and the pinned first.
    assert len(live) == 13 and digest(1) in live and digest(501) in live
    assert len(record.versions) == 23 and len(record.condemned) == 501 - 23
    assert all(v.retired_by == COLLECTED for v in record.versions if not v.live)
    assert len(json.dumps(record.to_value())) < 80_000
    swept = record.swept(frozenset(c.digest for c in record.condemned))
    assert swept.condemned == () and len(json.dumps(swept.to_value())) < 20_000
    again = record.with_version(version(3))
    again.check()
    assert again.version(digest(3)).live


def test_too_many_that_wait_for_the_sweep_are_refused():
    waiting = tuple(Condemned(digest(n), 1.0) for n in range(1000, 1000 + MAX_CONDEMNED))
    record = replace(published(1, 2), condemned=waiting).collected(0, 2.0)
    with pytest.raises(Conflict, match="store sweep"):
        record.with_version(version(3)).promoted(digest(3)).collected(0, 2.0)
    swept = record.swept(frozenset({waiting[0].digest}))
    swept.with_version(version(3)).promoted(digest(3)).collected(0, 2.0).check()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "keep", "promote", "canary", "back", "retire", "drop", "all"]),
        st.integers(1, 6),
        st.sampled_from(["production", "canary", "beta"]),
        st.floats(0, 1),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(OPERATIONS)
def test_any_history_keeps_its_invariants(operations):
    record = AdapterRecord("acme", "bot")
    for at, (what, number, alias, weight) in enumerate(operations):
        try:
            match what:
                case "publish":
                    record = record.with_version(version(number)).promoted(digest(number))
                case "keep":
                    record = record.with_version(version(number))
                case "promote":
                    record = record.promoted(record.find(digest(number)).ref.digest, alias)
                case "canary":
                    found = record.find(digest(number)).ref.digest
                    record = record.with_canary(found, weight, alias=alias)
                case "back":
                    record = record.rolled_back(alias, at_s=float(at), why="x")
                case "retire":
                    record = record.retired_version(digest(number), float(at), "x")
                case "drop":
                    record = record.without_alias(alias)
                case "all":
                    record = record.retired(float(at), "x")
        except LoraplexError as error:
            assert 400 <= error.status < 500
        record = record.collected(2, float(at))
        record.check()
        assert through_json(record) == record
        if record.status == "published":
            assert record.resolve(None, lambda: 0.5) is not None
