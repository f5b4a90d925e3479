"""JSON as this service takes it: UTF-8, every field once, and only strings that are text. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from engine.errors import InvalidRequest

MAX_SHOWN = 80
"""Characters of a name in a message."""


def decode_json(body: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(f" from byte {error.start} on") from None
    if "\0" in text[:4]:  # UTF-16 or UTF-32 of ASCII
        raise _not_utf8("")
    try:
        return read_json_text(text)
    except ValueError as error:
        raise InvalidRequest(
            f"The body is not valid JSON: {str(error)[:200]}", code="invalid_json"
        ) from None


def read_json_text(text: str) -> Any:
    """Raises ValueError for what is no JSON, InvalidRequest (naming it) for a field that is there
    twice."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
        # Halves of surrogate pairs are valid JSON but no text: nothing after us could encode them.
        if "\\ud" in text.lower() and not is_text(json.dumps(value, ensure_ascii=False)):
            raise ValueError("a string holds half of a surrogate pair, which is no text")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def twice(name: str) -> InvalidRequest:
    """Of a field: which of its values is meant can't be told."""
    shown = name[:MAX_SHOWN].encode(errors="replace").decode()
    return InvalidRequest(f"{shown} is there twice. Send it once.", param=shown)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise twice(name)
            seen.add(name)
    return found


def _not_utf8(where: str) -> InvalidRequest:
    return InvalidRequest(
        f"The body is not UTF-8{where}. Send the JSON in UTF-8.", code="invalid_json"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
