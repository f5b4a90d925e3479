"""Which of many names get a label of their own. Pure.

A metric with one series for each of 100,000 adapters is no use to anybody. So the names with most
traffic report under their own label and all the others together under OTHER. Who is who is decided
now and then (`rank`), by traffic that counts half as much after each ranking; who has a label keeps
it against others that are not clearly ahead.

Nothing is ever taken from one label and given to another: an event counts under one label, for
good. So every series only grows, and sums over all labels are exact. A name that loses its label
keeps its last values until the next ranking, so that whoever reads in between sees them whole.
"""

from __future__ import annotations

import math
from heapq import nlargest

from deployments.telemetry.instrument import OTHER

LEAD = 1.5
"""Times the traffic of one that has a label: what a newcomer needs to take it over."""
FADE = 0.5
RARE = 0.1
"""The part of all names that counts as least popular."""


class Ranking:
    """top: names with a label of their own at most, at one time. While there are fewer, whoever
    comes has one.
    max_ever: names that ever get one; then those that have one keep it. None: no limit.
    max_tracked: names whose traffic is known; more of them, and the least are forgotten. A ranking
    of so many takes some milliseconds.
    """

    def __init__(self, top: int, max_ever: int | None = None, max_tracked: int = 4096) -> None:
        self._top = top
        self._max_ever = max_ever
        self._max_tracked = max_tracked
        self._traffic: dict[str, float] = {}
        self._labels: set[str] = set()
        self._leaving: set[str] = set()
        self._ever: set[str] = set()
        self._common: set[str] | None = None  # none before the first ranking

    def see(self, name: str) -> str:
        """One more event of this name: its label."""
        self._traffic[name] = self._traffic.get(name, 0.0) + 1.0
        if len(self._traffic) > self._max_tracked:
            self._forget_least()
        if name not in self._labels and len(self._labels) < self._top and self._may_have(name):
            self._give(name)
        return self.label(name)

    def label(self, name: str) -> str:
        return name if name in self._labels else OTHER

    def is_rare(self, name: str) -> bool:
        """Whether it is in the tenth of the names with least traffic, by the last ranking, or not
        known to it; nobody is before the first."""
        return self._common is not None and name not in self._common

    def rank(self) -> set[str]:
        """Decide anew. Returns the labels that nothing is reported under since the last ranking:
        their series may be forgotten."""
        gone = self._leaving - self._labels
        ahead = nlargest(self._top, self._candidates(), key=self._standing)
        before, self._labels = self._labels, set()
        for name in ahead:
            self._give(name)
        self._leaving = before - self._labels
        self._common = self._all_but_the_least_tenth()
        self._fade()
        return gone - self._labels

    def check(self) -> None:
        """Asserts what must hold between any two calls."""
        assert len(self._labels) <= self._top and not self._labels & self._leaving
        assert self._max_ever is None or len(self._ever) <= self._max_ever
        assert self._labels | self._leaving <= self._ever or self._max_ever is None
        assert len(self._traffic) <= self._max_tracked

    def _candidates(self) -> list[str]:
        names = self._traffic.keys() | self._labels
        room = math.inf if self._max_ever is None else self._max_ever - len(self._ever)
        if room >= self._top:
            return list(names)
        new = nlargest(int(room), names - self._ever, key=self._standing)
        return [*(names & self._ever), *new]

    def _standing(self, name: str) -> tuple[float, str]:
        lead = LEAD if name in self._labels else 1.0
        return lead * self._traffic.get(name, 0.0), name

    def _may_have(self, name: str) -> bool:
        return self._max_ever is None or name in self._ever or len(self._ever) < self._max_ever

    def _give(self, name: str) -> None:
        self._labels.add(name)
        self._leaving.discard(name)
        if self._max_ever is not None:
            self._ever.add(name)

    def _all_but_the_least_tenth(self) -> set[str]:
        ascending = sorted(self._traffic, key=self._traffic.__getitem__)
        return set(ascending[math.ceil(RARE * len(ascending)) :])

    def _fade(self) -> None:
        self._traffic = {
            name: FADE * traffic for name, traffic in self._traffic.items() if FADE * traffic >= 0.1
        }

    def _forget_least(self) -> None:
        """Half of them: those with least traffic."""
        kept = nlargest(self._max_tracked // 2, self._traffic, key=self._traffic.__getitem__)
        self._traffic = {name: self._traffic[name] for name in kept}
