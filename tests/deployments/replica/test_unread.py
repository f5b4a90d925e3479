"""What a core has not read, by its receipts."""

from __future__ import annotations

import os

from deployments.replica.unread import Unread
from engine.messages import Abort, Input, Submit
from engine.receipts import Receipts, open_memory
from engine.types import FinishReason
from tests.support.replicas import request


def submit(name: str) -> Submit:
    return Submit(request(name))


def test_requests_are_unread_until_their_message_is_counted() -> None:
    fd = open_memory()
    theirs, ours = Receipts(os.dup(fd)), Receipts(fd)
    unread = Unread(ours, num_sent=1)
    theirs.add(1)
    sent: list[Input] = [submit("a"), Abort("a", FinishReason.ABORT), submit("b"), submit("c")]
    for message in sent:
        unread.sent(message)
    left = [unread.request_ids()]
    for _ in sent:
        theirs.add(1)
        left.append(unread.request_ids())
    assert left == [{"a", "b", "c"}, {"b", "c"}, {"b", "c"}, {"c"}, set()]
    unread.sent(submit("d"))
    assert unread.request_ids() == {"d"}
