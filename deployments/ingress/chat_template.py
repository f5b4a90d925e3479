"""Chat messages to prompt text, as the model's own template says.

Templates are programs from a model's folder: they run in a sandbox and see plain JSON values only.
What they may use (`raise_exception`, `strftime_now`, `tojson`, loop controls, special tokens by
name) is what the model library that they were written for gives them; tests hold the output to it.
An adapter brings no template of its own: it was published for this base and its tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidRequest

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
)
REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    RecursionError,
)
"""What a template may raise for messages that it doesn't take."""


class ChatTemplate:
    """source: the template; None where the model has none, so that chat is refused.

    special_tokens: by name, such as bos_token. now: the local time, for `strftime_now`.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, Any],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        if source is not None:
            self._template = _environment(now).from_string(source)

    @classmethod
    def load(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """From `chat_template.jinja` or else tokenizer_config.json of a Hugging Face folder."""
        config = _read_json(folder / "tokenizer_config.json")
        special = {**_read_json(folder / "special_tokens_map.json"), **config}
        tokens = {k: _token_text(special[k]) for k in SPECIAL_TOKENS if special.get(k)}
        return cls(_source(folder, config), tokens, now=now)

    @property
    def exists(self) -> bool:
        return self._template is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt up to where the answer begins. `variables` are the client's, such as
        enable_thinking.

        Raises InvalidRequest where there is no template or it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template. Use /v1/completions.", code="no_chat_template"
            )
        own = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self._template.render({**self._special_tokens, **(variables or {}), **own})
        except REFUSALS as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {str(error)[:500]}",
                code="chat_template_error",
                param="messages",
            ) from None


class _Generation(Extension):
    """Marks an assistant's part for training tools; here `{% generation %}` only has content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _source(folder: Path, config: Mapping[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        pass
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((t.get("template") for t in found if t.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _token_text(token: Any) -> Any:
    if isinstance(token, list):
        return [_token_text(t) for t in token]
    return token.get("content") if isinstance(token, Mapping) else token


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
