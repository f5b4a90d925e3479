"""Tokens to text as it becomes certain: whole characters only, nothing taken back.

The decoders of the families served here join per-token bytes: GPT-2's byte alphabet (Llama 3,
Qwen, newer Mistral) or text with `<0xNN>` for single bytes (Llama 2, Mistral). So a table from
token id to bytes and an incremental UTF-8 decoder give the text, at a dictionary look-up a token
and without decoding anything twice. The text equals the tokenizer's own decode of the whole with
special tokens skipped; bytes that are no UTF-8 become U+FFFD, which with `<0xNN>` tokenizers
differs from theirs in one way: theirs gives up a whole run of such bytes for one bad one, and so
could say nothing until the run's end.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tokenizers import Tokenizer

from engine.errors import InvalidRequest


class UnknownDecoder(InvalidRequest):
    """The tokenizer decodes in a way that isn't known here."""

    code = "unsupported_tokenizer"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Per token id its bytes; special tokens have none, unknown ids neither.

    strip  characters to take off the text's start, where they are spaces
    """

    pieces: dict[int, bytes]
    strip: int = 0

    @classmethod
    def load(cls, path: str) -> Self:
        """From a tokenizer.json. Raises UnknownDecoder, naming what isn't known."""
        return cls.of(Tokenizer.from_file(path))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        decoder = _Decoder.of(json.loads(tokenizer.to_str())["decoder"])
        pieces = {
            token: decoder.piece(text)
            for text, token in tokenizer.get_vocab(with_added_tokens=True).items()
        }
        for token, added in tokenizer.get_added_tokens_decoder().items():
            pieces[token] = b"" if added.special else decoder.piece(added.content)
        return cls(pieces, decoder.strip)


class Detokeniser:
    """The text of one sequence."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._strip = vocabulary.strip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens make certain; a character that isn't whole yet is kept."""
        pieces = self._pieces
        return self._start(self._utf8.decode(b"".join([pieces.get(t, b"") for t in tokens])))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became whole."""
        return self._start(self._utf8.decode(b"", final=True))

    def _start(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


@dataclass(frozen=True, slots=True)
class _Decoder:
    """One tokenizer's decoder, read from its description.

    alphabet   byte of a character (GPT-2's), or None
    replace    (what, by what) in order, in a token's text
    fallback   whether `<0xNN>` is a byte
    """

    alphabet: dict[str, int] | None
    replace: tuple[tuple[str, str], ...]
    fallback: bool
    strip: int

    @classmethod
    def of(cls, description: dict[str, Any] | None) -> Self:
        alphabet, replace, fallback, strip = None, [], False, 0
        for step in _steps(description):
            match step:
                case {"type": "ByteLevel"}:
                    alphabet = byte_alphabet()
                case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                    replace.append((old, new))
                case {"type": "ByteFallback"}:
                    fallback = True
                case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                    strip = start
                case {"type": "Fuse"}:
                    pass
                case _:
                    raise UnknownDecoder(f"tokenizer.json: decoder {step} is not supported.")
        if (alphabet is None) == (not replace):
            raise UnknownDecoder(f"tokenizer.json: decoder {description} is not supported.")
        return cls(alphabet, tuple(replace), fallback, strip)

    def piece(self, text: str) -> bytes:
        """The bytes of the token whose text is `text`."""
        if self.alphabet is not None:
            try:
                return bytes([self.alphabet[c] for c in text])
            except KeyError:  # an added token, written as itself
                return text.encode()
        for old, new in self.replace:
            text = text.replace(old, new)
        if self.fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass
        return text.encode()


def byte_alphabet() -> dict[str, int]:
    """GPT-2's: bytes that print stand for themselves, the others are counted up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def _steps(description: dict[str, Any] | None) -> list[dict[str, Any]]:
    if description is None:
        return []
    if description["type"] == "Sequence":
        return [s for part in description["decoders"] for s in _steps(part)]
    return [description]
