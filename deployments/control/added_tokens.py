"""Tokens that an adapter's trainer added to the tokenizer, read from the files beside an adapter.

An adapter trained with them answers in, or is asked with, tokens that the service never makes. Many
trainers save the base's own added tokens too: those are told apart by name and id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.errors import AdapterRejected

MAX_TOKENIZER_BYTES = 32 << 20
"""Of one of them."""

TokenId = Callable[[str], int | None]
"""The id of a token of the base, None for one that it doesn't have."""


class BaseTokens:
    """Of the tokenizer.json in `folder`, read when it is first asked: without one, no token is
    known."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokenizer.json"
        self._tokenizer: Tokenizer | None = None

    def __call__(self, token: str) -> int | None:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._path))
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def check_tokens(files: Mapping[str, Path], token_id: TokenId) -> None:
    """files: of `store.TOKENIZER_FILES`, those that are there.

    Raises AdapterRejected where one holds a token that the base has not, or not by that id.
    """
    for name, path in files.items():
        for token, number in _added(name, path):
            if token_id(token) != number:
                raise AdapterRejected(
                    f"{name} adds the token {token[:80]!r} (id {str(number)[:20]}), which the"
                    " base's tokenizer has not: prompts and answers can't hold it. Train with the"
                    " base's own tokenizer, or merge the adapter into a model of its own; or, if it"
                    " was not trained with that token, publish it without its tokenizer files.",
                    code="adapter_added_tokens",
                    param=name,
                )


def _added(name: str, path: Path) -> Iterator[tuple[str, Any]]:
    """(token, id) of each. A file that can't be read so is refused: what it adds is unknown."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKENIZER_BYTES + 1)
        if len(data) > MAX_TOKENIZER_BYTES:
            raise ValueError(f"it is larger than {MAX_TOKENIZER_BYTES} bytes")
        found = json.loads(data)
        if name == "added_tokens.json":
            yield from found.items()
        elif name == "tokenizer.json":
            for token in found.get("added_tokens") or ():
                yield token["content"], token["id"]
        else:
            by_id: Mapping[str, Any] = found.get("added_tokens_decoder") or {}
            for number, token in by_id.items():
                yield token["content"], int(number)
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise AdapterRejected(
            f"{name} can't be read as a tokenizer's file ({str(error)[:200]}): which tokens it"
            " adds is unknown. Mend it, or publish the adapter without its tokenizer files.",
            code="adapter_added_tokens",
            param=name,
        ) from None
