"""Tokens a minute. Pure: the clock comes in as an argument."""

from __future__ import annotations

MINUTE_S = 60.0


class TokenBucket:
    """A minute's tokens at most, and as many again within each minute.

    What was used fades evenly, at `per_minute` a minute. More may be used than there is: output is
    known only once it is there. Then nothing is left until that has faded, too.

    per_minute  tokens, > 0
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_minute = per_minute
        self._used = 0.0
        self._at_s = now

    def set_limit(self, per_minute: float, now: float) -> None:
        """Another limit from now on. Under a lower one what was used is a minute's at most."""
        if per_minute == self._per_minute:
            return
        self._fade(now)
        if per_minute < self._per_minute:
            self._used = min(self._used, per_minute)
        self._per_minute = per_minute

    def use(self, num_tokens: float, now: float) -> None:
        """So many are used, whether there are any or not; given back where it is negative."""
        self._fade(now)
        self._used = max(0.0, self._used + num_tokens)

    def left(self, now: float) -> float:
        """Tokens that may be used at once; negative after more were used than there were."""
        self._fade(now)
        return self._per_minute - self._used

    def seconds_until(self, num_tokens: float, now: float) -> float:
        """When so many will be left, if nobody uses any meanwhile; at most a minute's worth ever
        is."""
        lacking = min(num_tokens, self._per_minute) - self.left(now)
        return max(0.0, lacking * MINUTE_S / self._per_minute)

    @property
    def is_full(self) -> bool:
        """Nothing is used, as of the last call: as good as a new one."""
        return self._used == 0.0

    def _fade(self, now: float) -> None:
        passed_s = max(0.0, now - self._at_s)
        self._used = max(0.0, self._used - passed_s * self._per_minute / MINUTE_S)
        self._at_s = max(self._at_s, now)
