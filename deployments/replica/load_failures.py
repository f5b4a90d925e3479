"""Why versions last failed to load on one replica, for who asks. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from engine.errors import ErrorInfo
from engine.messages import LoadDone

MAX_KEPT = 1000


class LoadFailures:
    """The newest reason by `ref.key`, until the version loads. The oldest go first when many fail.

    max_kept  how many are remembered
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._reasons: OrderedDict[str, ErrorInfo] = OrderedDict()

    def note(self, done: LoadDone) -> None:
        """A load has ended, well or badly."""
        self._reasons.pop(done.key, None)
        if done.error is not None:
            self._reasons[done.key] = done.error
            while len(self._reasons) > self._max_kept:
                self._reasons.popitem(last=False)

    def forget(self, key: str) -> None:
        """It may have been mended."""
        self._reasons.pop(key, None)

    def reason(self, key: str) -> ErrorInfo | None:
        return self._reasons.get(key)

    def reasons(self) -> Mapping[str, str]:
        """As operators are told."""
        return {key: error.message for key, error in self._reasons.items()}

    def told(self) -> dict[str, Mapping[str, str]]:
        """`failed`: the reasons; `failed_public`: in the words for tenants."""
        public = {key: error.public or error.message for key, error in self._reasons.items()}
        return {"failed": self.reasons(), "failed_public": public}
