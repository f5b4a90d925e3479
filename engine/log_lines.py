"""Log lines as JSON objects, with the same keys from every process of the service.

    time (UTC), level, role (of the process), logger, message
    request_id, tenant, adapter, version, trace_id, span_id   where known
    whatever else a line has to say, and error: types and frames of an exception

A line says which of these it knows by `extra=fields(...)`; in a process that serves requests
`about` adds what is known of the present one. Standard library only.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from engine.types import AdapterRef

OURS = ("loraplex", "deployments", "engine", "router")
"""The loggers whose INFO lines are written; of all others warnings are."""

About = Callable[[], Mapping[str, Any]]


def fields(ref: AdapterRef | None = None, **more: Any) -> dict[str, Any]:
    """For a logger's `extra`. ref: the adapter version that the line is about."""
    named = {} if ref is None else {"adapter": ref.ring_key, "version": ref.digest}
    return {"fields": {**named, **more}}


class JsonLines(logging.Formatter):
    """role: of this process. about: what is known of the request at hand; while it answers
    anything, the texts of exceptions are left out, for they may quote a prompt."""

    def __init__(self, role: str, about: About = dict) -> None:
        super().__init__()
        self._role = role
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        about = self._about()
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "role": self._role,
            "logger": record.name,
            "message": record.getMessage(),
            **about,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _told(record.exc_info[1], with_texts=not about)
        return json.dumps(line, default=str)


def log_as_json(role: str, about: About = dict, stream: TextIO | None = None) -> None:
    """All that this process logs goes to `stream` (its error output) from now on. Once more, and
    the last call counts."""
    handler = logging.StreamHandler(stream or sys.__stderr__)
    handler.setFormatter(JsonLines(role, about))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, JsonLines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)


def _told(error: BaseException, with_texts: bool) -> str:
    """An exception and what it came from."""
    if with_texts:
        return "".join(traceback.format_exception(error)).rstrip()
    told: list[str] = []
    while True:
        told += [type(error).__name__, *traceback.format_tb(error.__traceback__)]
        hidden = error.__suppress_context__
        cause = error.__cause__ or (None if hidden else error.__context__)
        if cause is None:
            return "\n".join(line.rstrip() for line in told)
        error = cause
        told.append("from")
