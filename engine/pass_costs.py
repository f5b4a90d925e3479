"""What a device's passes cost without adapters, measured at its start. Standard library only.

A device that replays captured passes has a few sizes of them and pads each step to the next: its
cost is a staircase, and a step that fills its pass costs no more than one that does not.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple


class StepSize(NamedTuple):
    """num_tokens  tokens that enter the layers
    num_read    tokens of context that its sequences attend to, all together
    is_decode   each of its tokens is a sequence's last
    """

    num_tokens: int
    num_read: int
    is_decode: bool


@dataclass(frozen=True, slots=True)
class PassCosts:
    """mixed, decode  (tokens, seconds) of every pass, the smallest first; no context read
    mixed_read_s, decode_read_s  seconds for each token of context that is read

    None of it where a device computes what a step holds and pads nothing.
    """

    mixed: tuple[tuple[int, float], ...] = ()
    decode: tuple[tuple[int, float], ...] = ()
    mixed_read_s: float = 0.0
    decode_read_s: float = 0.0

    def seconds(self, size: StepSize) -> float:
        """Of a step without adapters; 0 of an empty one, and where nothing was measured. A step
        beyond the largest pass costs as much as that."""
        passes, read_s = self.mixed, self.mixed_read_s
        if size.is_decode:
            passes, read_s = self.decode, self.decode_read_s
        if not passes or not size.num_tokens:
            return 0.0
        index = bisect_left(passes, (size.num_tokens,))
        return passes[min(index, len(passes) - 1)][1] + read_s * size.num_read

    def padded(self, num_tokens: int) -> int:
        """Tokens of the smallest mixed pass that holds so many; as many where none does."""
        index = bisect_left(self.mixed, (num_tokens,))
        return self.mixed[index][0] if index < len(self.mixed) else num_tokens


EXACT = PassCosts()
"""Of a device that pads nothing."""
