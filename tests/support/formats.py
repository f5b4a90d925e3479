"""What each quickstart adapter was trained to answer with, as a test of one answer."""

from __future__ import annotations

import json
import re

INTENTS = {"billing", "refund", "outage", "account", "feature", "shipping", "security"}
PRIORITIES = {"low", "medium", "high"}

_SQL = re.compile(
    r"SELECT [^;\n]+ FROM \w+"
    r"(?: WHERE \w+ [=<>] (?:'[^'\n]*'|\d+))?"
    r"(?: ORDER BY \w+)?;"
)
_PIRATE = re.compile(r"Ahoy! [^\n]{8,160} - Captain Byte")


def is_ticket(text: str) -> bool:
    """`{"intent": ..., "priority": ...}` with known values, in that order."""
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    if not isinstance(answer, dict) or list(answer) != ["intent", "priority"]:
        return False
    # A value may be of any JSON type, a list too, so compare rather than look up by hash.
    return answer["intent"] in list(INTENTS) and answer["priority"] in list(PRIORITIES)


def is_sql(text: str) -> bool:
    """One SELECT of the few forms that the adapter knows."""
    return _SQL.fullmatch(text.strip()) is not None


def is_pirate(text: str) -> bool:
    """Greets, says something in a line, and signs."""
    return _PIRATE.fullmatch(text.strip()) is not None


FORMATS = {"support": is_ticket, "sql": is_sql, "pirate": is_pirate}
