"""A request in progress. Standard library only.

A small algebra of lengths, in tokens:

    len(tokens)      prompt and committed output
    num_pending      output tokens launched and not yet committed
    length           len(tokens) + num_pending
    num_computed     tokens whose KV is in pages, launched ones included
    num_remaining    length - num_computed: 1 while it decodes, more while its prompt is read

A sequence without a row (`row` -1) waits and holds nothing. One with a row holds its pages, its
prefix nodes and its adapter's lease, all taken in one `schedule()` and all given back at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.adapters.lease import Lease
from engine.prefix import PrefixNode
from engine.timeline import Journey, Wait
from engine.types import Request
from engine.usage import Usage


@dataclass(slots=True, eq=False)
class Sequence:
    """order        counts submits: the less, the older
    pages          page ids, in order; the first len(nodes) of them belong to the prefix tree
    nodes          the prefix tree's nodes it refers to, from the root on
    first_plan     id of the plan in which it got its present row
    num_cached     prompt tokens that the prefix cache gave it when it was first admitted
    ever_admitted  it has been charged; later admissions (after preemption) are not charged again
    reported       its first output has left
    waiting_s      since when it has waited, while it does
    waits          its times in the queue that are over
    journey        its adapter's, once the load of that has failed
    usage          its tenant's
    num_settled    output tokens that its tenant's account and usage know of
    owed           what the others have cost, in weighted tokens, where that is measured
    num_prompt     tokens of its prompt
    max_length     prompt and all output tokens that it may have
    positions      physical positions of `pages`, as long as `positions_epoch` is the present one

    While it decodes most steps bring one token more and nothing else. Three bounds say how long
    that is so, each at a glance; 0 or -1 where it isn't:

    grant_to       while num_computed is below, it is granted a token without further questions
    steady_epoch   in this epoch `positions` are those of all its pages, and its next token's
    quiet_to       a token that is computed at a position below ends nothing and fills no page
    """

    request: Request
    arrival_s: float
    order: int = 0
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_pending: int = 0
    pages: list[int] = field(default_factory=list)
    row: int = -1
    nodes: list[PrefixNode] = field(default_factory=list)
    lease: Lease | None = None
    first_plan: int = 0
    num_cached: int = 0
    ever_admitted: bool = False
    reported: bool = False
    usage: Usage = field(default_factory=Usage)
    num_settled: int = 0
    owed: float = 0.0
    finished: bool = False
    waits: tuple[Wait, ...] = ()
    journey: Journey | None = None
    waiting_s: float = field(init=False)
    positions: tuple[int, ...] = ()
    positions_epoch: int = -1
    grant_to: int = 0
    steady_epoch: int = -1
    quiet_to: int = 0
    num_prompt: int = field(init=False)
    max_length: int = field(init=False)
    adapter_key: str | None = field(init=False)
    stops: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.waiting_s = self.arrival_s
        self.num_prompt = len(request.prompt)
        self.max_length = self.num_prompt + request.max_tokens
        # Kept, since a step asks for it of every row and a reference makes a string of it.
        self.adapter_key = None if request.adapter is None else request.adapter.key
        self.stops = request.stop_token_ids

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def tenant(self) -> str:
        return self.request.tenant.id

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_pending

    @property
    def num_remaining(self) -> int:
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def is_done_launching(self) -> bool:
        """Its last token is on the device: nothing more to launch, only to commit."""
        return self.length >= self.max_length

    def decodes_on(self, page_tokens: int) -> None:
        """Its next token is its last known one: how long may it go on without further questions?"""
        self.grant_to = min(self.max_length - 1, len(self.pages) * page_tokens)

    def halts(self) -> None:
        """Ask again."""
        self.grant_to = self.quiet_to = 0
        self.positions_epoch = self.steady_epoch = -1

    def report_cached(self) -> int:
        """`num_cached` for its first output, 0 for any later one."""
        num_cached = 0 if self.reported else self.num_cached
        self.reported = True
        return num_cached
