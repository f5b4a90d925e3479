"""The JSON bodies of the endpoints that change what the registry has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from deployments.changes.placing import Placing
from deployments.ingress.probes import MAX_ANSWER_TOKENS, check_probes
from deployments.registry.alias import PRODUCTION
from deployments.registry.records import SWITCHES
from deployments.registry.version_record import Probe
from deployments.rest.strict_json import read_json_text
from deployments.rest.wording import problems, unfit
from engine.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)
Weight = Annotated[float, Field(ge=0, le=1)]
MAX_LIMIT = 10**12
"""Of every limit that is a whole number."""
Rank = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


MAX_REPLICAS = 10_000


def _replicas(value: Any) -> Any:
    if value in ("owner", "all") or (type(value) is int and 1 <= value <= MAX_REPLICAS):
        return value
    raise unfit("must be owner, all, or a number of replicas above 0")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ProbeBody(Body):
    prompt: str
    max_tokens: int = MAX_ANSWER_TOKENS // 2
    expect: str = ""


class PublishBody(Body):
    """tenant: the caller's own unless an admin's; exactly one of folder, prefix and an upload."""

    tenant: str | None = None
    name: str
    folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    prefix: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    base: str | None = None
    alias: str | None = Field(default=None, alias="as")
    weight: Weight | None = None
    gate: bool | None = None
    promote: bool = True
    probes: list[ProbeBody] = []

    def placing(self) -> Placing:
        """Raises InvalidRequest for a name that can't be, or both a name and none."""
        if not self.promote:
            if (self.alias, self.weight, self.gate) != (None, None, None):
                raise InvalidRequest(
                    "`as`, `weight` and `gate` are of a name; promote false gives it none.",
                    param="promote",
                )
            return Placing(None)
        return Placing(self.alias or PRODUCTION, self.weight, self.gate).checked()

    def asked(self) -> tuple[Probe, ...]:
        """Raises InvalidRequest."""
        return check_probes([Probe(p.prompt, p.max_tokens, p.expect) for p in self.probes])


class PromoteBody(Body):
    """version: a digest's beginning or an alias. expect: what the name must stand for till now."""

    version: str = Field(min_length=1, max_length=64)
    alias: str | None = Field(default=None, alias="as")
    weight: Weight | None = None
    gate: bool | None = None
    expect: Annotated[str, Field(min_length=8, max_length=64)] | None = None

    def placing(self) -> Placing:
        return Placing(self.alias or PRODUCTION, self.weight, self.gate).checked()


class RollbackBody(Body):
    alias: str = Field(default=PRODUCTION, alias="as")
    expect: Annotated[str, Field(min_length=8, max_length=64)] | None = None


class SweepBody(Body):
    dry_run: bool = False


class WarmthBody(Body):
    """replicas: how many of the adapter's owners, the first of them being where its requests go."""

    tier: Literal["host", "device"] = "device"
    replicas: Annotated[Literal["owner", "all"] | int, BeforeValidator(_replicas)] = "owner"

    def num_replicas(self) -> int:
        """0: all."""
        if isinstance(self.replicas, int):
            return self.replicas
        return 1 if self.replicas == "owner" else 0


class PrefetchBody(WarmthBody):
    """retry: also what has failed to load is tried again; false: its failure is told."""

    retry: bool = True


class TenantLimits(Body):
    """What of a tenant can be changed; absent: as it is; null, where it may be: no limit."""

    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    max_concurrent: Limit = 256
    max_queued: Limit = 128
    max_tokens_per_minute: Limit | None = None
    max_adapters: Count | None = None
    max_adapter_bytes: Count | None = None
    max_rank: Rank | None = None
    max_host_bytes: Count | None = None
    max_device_bytes: Count | None = None
    soft_kv_share: Annotated[float, Field(gt=0, le=1)] | None = None
    hard_kv_share: Annotated[float, Field(gt=0, le=1)] | None = None
    allowed_ranks: Annotated[list[Rank], Field(max_length=64)] = []
    self_publish: bool = False
    log_content: bool = False

    def switches(self) -> dict[str, bool]:
        """The flags that the body names."""
        return self.model_dump(include=self.model_fields_set.intersection(SWITCHES))

    def given(self) -> dict[str, Any]:
        """Those that the body names, as a record has them, but for the flags."""
        found = self.model_dump(include=self.model_fields_set - {*SWITCHES, "id"})
        if "allowed_ranks" in found:
            found["allowed_ranks"] = tuple(sorted(set(found["allowed_ranks"])))
        return found


class TenantBody(TenantLimits):
    id: str


class NoFields(Body):
    """Of a POST that needs nothing said."""


def parse(body_type: type[B], values: Any) -> B:
    """Raises InvalidRequest that names the field."""
    if not isinstance(values, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return body_type.model_validate(values)
    except ValidationError as error:
        where, said = problems(error, body_type)[0]
        raise InvalidRequest(said, param=where or None) from None


def parse_form(body_type: type[B], fields: Mapping[str, str]) -> B:
    """As `parse`, from a form: texts as they are, all else as JSON writes it. Which is which, the
    body says."""
    values: dict[str, Any] = dict(fields)
    for name in values.keys() & _not_texts(body_type):
        try:
            values[name] = read_json_text(values[name])
        except ValueError as error:
            raise InvalidRequest(f"{name} is not JSON: {str(error)[:200]}.", param=name) from None
    return parse(body_type, values)


def _not_texts(body_type: type[BaseModel]) -> set[str]:
    """The fields, by their names outside, that no text can be given for."""
    properties = body_type.model_json_schema()["properties"]
    return {name for name, schema in properties.items() if not _is_text(schema)}


def _is_text(schema: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "string" for one in schema.get("anyOf", [schema]))
