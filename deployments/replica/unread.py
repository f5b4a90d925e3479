"""Requests that were sent to a core and that it has not read: what it can't have died of."""

from __future__ import annotations

from collections import deque

from engine.messages import Input, Submit
from engine.receipts import Receipts


class Unread:
    """receipts: the core's; num_sent: messages before the first that is told here."""

    def __init__(self, receipts: Receipts, num_sent: int) -> None:
        self._receipts = receipts
        self._num_sent = num_sent
        self._requests: deque[tuple[int, str]] = deque()

    def sent(self, message: Input) -> None:
        """Each message, in the order in which they were sent, also to a core that was dead."""
        self._num_sent += 1
        if isinstance(message, Submit):
            self._drop_read()
            self._requests.append((self._num_sent, message.request.id))

    def request_ids(self) -> frozenset[str]:
        self._drop_read()
        return frozenset(request_id for _, request_id in self._requests)

    def _drop_read(self) -> None:
        num_read = self._receipts.num_read
        while self._requests and self._requests[0][0] <= num_read:
            self._requests.popleft()
