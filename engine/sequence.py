"""A request in progress. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.types import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens: prompt and committed output ids. num_computed: tokens whose KV is in pages, launched
    ones included. num_pending: output tokens launched and not yet committed. pages: page ids."""

    request: Request
    arrival_s: float
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_pending: int = 0
    pages: list[int] = field(default_factory=list)
    row: int = -1
