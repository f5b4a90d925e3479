"""Stop strings over text that comes in pieces.

The text ends where a stop string is first complete; of those complete at that character the one
that began first counts, so the cut is at the earliest. This doesn't depend on how the text was cut
into pieces, so streamed and whole answers agree.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back the longest end of the text that could be the start of a stop string.

    stops  none of them empty
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """The text that is now certain. Once `matched`, there is no more."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := held.find(stop)) >= 0
        ]
        if matches:
            self.matched = True
            self._held = ""
            return held[: min(matches)[1]]
        keep = self._undecided(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """The sequence ended: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string starts with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
