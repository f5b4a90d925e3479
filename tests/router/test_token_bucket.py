"""Tokens a minute, on a clock of our own."""

from __future__ import annotations

import random

import pytest

from router.token_bucket import TokenBucket


def test_a_minutes_worth_at_once_and_then_as_it_comes_again() -> None:
    bucket = TokenBucket(600, now=0.0)
    bucket.use(600, 0.0)
    assert bucket.left(0.0) == 0 and bucket.seconds_until(100, 0.0) == pytest.approx(10.0)
    assert bucket.left(10.0) == pytest.approx(100)
    assert bucket.left(1000.0) == 600, "no more than a minute's worth is ever saved"


def test_what_was_used_beyond_is_owed_and_what_is_given_back_counts() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.use(90, 0.0)
    assert bucket.left(0.0) == -30 and bucket.seconds_until(10, 0.0) == pytest.approx(40.0)
    bucket.use(-50, 0.0)
    assert bucket.left(0.0) == 20
    bucket.use(-500, 0.0)
    assert bucket.left(0.0) == 60 and bucket.is_full


def test_a_limit_that_changes_holds_at_once() -> None:
    bucket = TokenBucket(1000, now=0.0)
    bucket.use(900, 0.0)
    bucket.set_limit(2000, 0.0)
    assert bucket.left(0.0) == 1100
    bucket.set_limit(100, 0.0)
    assert bucket.left(0.0) == 0, "not minutes of waiting for what was allowed then"
    assert bucket.seconds_until(50, 0.0) == pytest.approx(30.0)


def test_the_wait_is_what_it_says() -> None:
    """Whatever was used: as soon as the time is over and no sooner, so many are left."""
    rng, now = random.Random(3), 0.0
    bucket = TokenBucket(500, now)
    for _ in range(500):
        now += rng.expovariate(1.0)
        bucket.use(rng.randint(-5, 40), now)
        wanted = rng.randint(1, 500)
        wait_s = bucket.seconds_until(wanted, now)
        assert bucket.left(now + wait_s) >= wanted - 1e-6
        now += wait_s
