"""What pydantic found wrong with a value, in words that need no knowledge of Python. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

OURS = "loraplex"
"""The type of an error whose words are ours already, see `unfit`."""
_SAID: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    OURS: lambda c: str(c["said"]),
    "missing": lambda c: "is needed",
    "string_type": lambda c: "must be a string",
    "string_too_short": lambda c: _at_least(c["min_length"], "character"),
    "string_too_long": lambda c: f"must have at most {c['max_length']} characters",
    "bool_type": lambda c: "must be true or false",
    "bool_parsing": lambda c: "must be true or false",
    "int_type": lambda c: "must be a whole number",
    "int_parsing": lambda c: "must be a whole number",
    "int_from_float": lambda c: "must be a whole number",
    "int_parsing_size": lambda c: "is too large a number",
    "float_type": lambda c: "must be a number",
    "float_parsing": lambda c: "must be a number",
    "finite_number": lambda c: "must be a finite number",
    "greater_than_equal": lambda c: f"must be {_number(c['ge'])} or more",
    "greater_than": lambda c: f"must be more than {_number(c['gt'])}",
    "less_than_equal": lambda c: f"must be {_number(c['le'])} or less",
    "less_than": lambda c: f"must be less than {_number(c['lt'])}",
    "list_type": lambda c: "must be a list",
    "tuple_type": lambda c: "must be a list",
    "too_long": lambda c: f"must have at most {c['max_length']} items",
    "too_short": lambda c: _at_least(c["min_length"], "item"),
    "dict_type": lambda c: "must be an object",
    "model_type": lambda c: "must be an object",
    "model_attributes_type": lambda c: "must be an object",
    "dataclass_type": lambda c: "must be an object",
    "literal_error": lambda c: f"must be {c['expected']}",
    "path_type": lambda c: "must be a path",
    "value_error": lambda c: str(c["error"]).removesuffix("."),
}
BRANCHES = re.compile(
    r".*[\[(].*|str|int|float|bool|constrained-(str|int|float)|list|dict|tuple|nullable"
)
"""Steps of a place that only name a branch of a union."""


def unfit(said: str) -> PydanticCustomError:
    """To be raised by a validator of ours. said: what is wrong, as in "must be a number"."""
    return PydanticCustomError(OURS, "{said}", {"said": said})


def problems(error: ValidationError, of: type) -> list[tuple[str, str]]:
    """(place, sentence) of each wrong value, places as in `a.b.0` ("": the whole); one sentence
    where several types would have been right. of: the model that was validated."""
    found: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False, include_input=False):
        found.setdefault(_place(detail), []).append(detail)
    return [
        (place, f"{place}: {_said(details, of)}." if place else f"{_said(details, of)}.")
        for place, details in found.items()
    ]


def _place(detail: ErrorDetails) -> str:
    first, *rest = detail["loc"] or ("",)
    steps = [first, *(s for s in rest if not (isinstance(s, str) and BRANCHES.fullmatch(s)))]
    return ".".join(str(step) for step in steps)


def _said(details: list[ErrorDetails], of: type) -> str:
    if details[0]["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is not known; here may be: {', '.join(_known(details[0]['loc'][:-1], of))}"
    first, *others = dict.fromkeys(_words(detail) for detail in details)
    choices = [first, *(other.removeprefix("must be ") for other in others)]
    *early, last = choices
    return f"{', '.join(early).replace(' or ', ', ')} or {last}" if early else last


def _words(detail: ErrorDetails) -> str:
    say = _SAID.get(detail["type"])
    return "is not valid" if say is None else say(detail.get("ctx", {}))


def _known(path: tuple[int | str, ...], of: type) -> list[str]:
    """The keys that the object at `path` may have."""
    for step in path:
        of = _object_in(_fields(of).get(str(step))) or of
    return list(_fields(of))


def _fields(of: Any) -> dict[str, Any]:
    """What each may hold, by its name for those who write it."""
    if issubclass(of, BaseModel):
        return {f.alias or name: f.annotation for name, f in of.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(of)}


def _object_in(annotation: Any) -> type | None:
    """The model that a field holds, in a list or beside None too."""
    if isinstance(annotation, type):
        is_object = issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
        return annotation if is_object else None
    inner = (_object_in(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)


def _number(bound: float) -> str:
    """A whole one without its `.0`."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def _at_least(number: int, what: str) -> str:
    return "must not be empty" if number == 1 else f"must have at least {number} {what}s"
