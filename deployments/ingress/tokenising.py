"""Text to token ids, on the ingress. Short texts at once, long ones off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import LoraplexError

NORMALISED = 4
"""Characters that a normaliser makes one of, at most: canonical composition joins up to so many."""


class Tokeniser:
    """The model's tokenizer.json. Texts are encoded as batches: unlike the encoding of one text,
    that lets other threads run, so a long text in `executor` doesn't hold up the event loop.

    inline_chars         texts up to this long, all of a request together, are tokenised in place
    max_chars_per_token  of a text: what is longer than so many times the context can't fit
    """

    def __init__(
        self, tokenizer: Tokenizer, *, executor: Executor | None = None, inline_chars: int = 2000
    ) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._executor = executor
        self._inline_chars = inline_chars
        self.max_chars_per_token = NORMALISED * max(map(len, tokenizer.get_vocab()), default=1)

    @classmethod
    def load(
        cls, folder: Path, *, executor: Executor | None = None, inline_chars: int = 2000
    ) -> Tokeniser:
        """Raises LoraplexError when the folder has no readable tokenizer.json."""
        path = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise LoraplexError(f"{path} can't be read: {error}") from None
        return cls(tokenizer, executor=executor, inline_chars=inline_chars)

    async def encode(self, texts: Sequence[str], *, special_tokens: bool) -> list[tuple[int, ...]]:
        """`special_tokens`: add those that the tokenizer puts around a text; a rendered chat
        template has its own."""
        if sum(map(len, texts)) <= self._inline_chars:
            return self._encode(texts, special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._encode, texts, special_tokens)

    def _encode(self, texts: Sequence[str], special_tokens: bool) -> list[tuple[int, ...]]:
        encode = self._tokenizer.encode_batch_fast
        return [tuple(e.ids) for e in encode(list(texts), add_special_tokens=special_tokens)]
