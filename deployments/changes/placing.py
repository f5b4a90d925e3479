"""Which name a version is to have. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import CANARY, PRODUCTION, check_alias
from engine.errors import Conflict, InvalidRequest


@dataclass(frozen=True, slots=True)
class Placing:
    """Which name a version is given. alias None: none; weight: of a canary alone, its share;
    None: that of the canary before it, 0 where there was none; gate: see `Alias.with_canary`."""

    alias: str | None = PRODUCTION
    weight: float | None = None
    gate: bool | None = None

    def checked(self) -> Placing:
        """Itself. Raises InvalidRequest for what no adapter can do, before any of it is begun."""
        if self.alias not in (None, CANARY):
            check_alias(str(self.alias))
        if self.weight is not None and self.alias != CANARY:
            raise InvalidRequest("Only a canary has a weight: --as canary.", param="weight")
        if self.gate is not None and self.alias != CANARY:
            raise InvalidRequest("Only a canary has a gate: --as canary.", param="gate")
        return self

    def of(self, record: AdapterRecord, digest: str, at_s: float) -> AdapterRecord:
        """at_s: now, Unix time. Raises InvalidRequest, NotFound, Conflict."""
        self.checked()
        if self.alias == CANARY:
            if PRODUCTION not in record.aliases:
                raise Conflict(
                    f"{record.model} has no production version that a canary could stand beside."
                    " Publish it without --as canary first.",
                    code="no_production",
                    param="as",
                )
            return record.with_canary(digest, self.weight, self.gate, at_s=at_s)
        return record if self.alias is None else record.promoted(digest, self.alias)
