"""Prompts of a wanted length, without a tokenizer: common words are a token each in about every
vocabulary. What the server counted is in its usage, and in the report."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

_TEXT = (
    "the of and to in is was for on that by this with from at it are as be or an were have not has"
    " had they their one more who about been also its than other time new no some can will first"
    " two after people only over most all into these which during between may world years states"
    " then war many state would there used such when where up out city made her him three year"
    " so if what them could both well part under through system while before number against"
    " line same being work area group each because name house early high place how know began long"
    " life family power water school public country game music film book south north west east"
)
WORDS: Sequence[str] = _TEXT.split()
_RING_WORDS = 4096


class Prompts:
    """Texts by their request. The same seed gives the same texts.

    Requests begin differently, so that no prefix cache helps them; those of one session begin alike
    and go on alike, so that a later, longer one repeats the one before.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        state, ring = zlib.crc32(str(seed).encode()), []
        for _ in range(_RING_WORDS):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            ring.append(WORDS[(state >> 12) % len(WORDS)])
        self._ring = ring

    def text(self, index: int, session: str, num_tokens: int) -> str:
        """About `num_tokens` tokens for the request of that index."""
        key = zlib.crc32(f"{self._seed}/{session or index}".encode())
        words = [WORDS[(key >> shift) % len(WORDS)] for shift in (0, 7, 14, 21)]
        start = key % _RING_WORDS
        while len(words) < num_tokens:
            words += self._ring[start : start + num_tokens - len(words)]
            start = 0
        return " ".join(words[:num_tokens])
