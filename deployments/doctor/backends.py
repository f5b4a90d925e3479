"""Checks of the registry, its admin key, and the object store. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.doctor.findings import Finding, failure, gib, ok, warning
from deployments.registry.redis_client import OLDEST_SERVER
from deployments.registry.schema import SCHEMA
from engine.errors import LoraplexError

FULL = 0.8
"""Of a Redis server's maxmemory."""
SKEW_WARNING_S, SKEW_FAILURE_S = 60.0, 900.0
"""S3 refuses signatures whose time is off by a quarter of an hour."""
TRY_LATER = "Mend that, then look again."


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What the server says of itself. max_bytes: of its memory, 0 for no limit. snapshots: the
    last one worked, if any was tried. wanted_replicas: as the URL asks; None for no wish."""

    version: str
    role: str = "master"
    policy: str = "noeviction"
    max_bytes: int = 0
    used_bytes: int = 0
    num_replicas: int = 0
    wanted_replicas: int | None = None
    append_only: bool = True
    append_works: bool = True
    snapshots: bool = True


@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """problem: why it can't be opened or read. schema: what is there; None for nothing yet.
    write_problem: of a probe record put, read and removed. num_admin_keys: that are good; None
    where nobody looked. key_is_good: of the admin key that was given, if one was."""

    where: str
    problem: str = ""
    schema: int | None = None
    write_problem: str = ""
    num_admin_keys: int | None = None
    key_is_good: bool | None = None
    redis: RedisFacts | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What came of a probe object: why each step failed; "" where it didn't. skew_s: its clock less
    ours; None where it doesn't say."""

    url: str
    open_problem: str = ""
    put_problem: str = ""
    get_problem: str = ""
    list_problem: str = ""
    delete_problem: str = ""
    skew_s: float | None = None


def check_registry(facts: RegistryFacts) -> list[Finding]:
    findings = [] if facts.redis is None else check_redis(facts.redis)
    if facts.problem:
        return [*findings, _told("registry", facts.problem)]
    findings.append(_schema(facts))
    if facts.write_problem:
        findings.append(_told("registry writes", facts.write_problem))
    return [*findings, *_admin_key(facts)]


def _schema(facts: RegistryFacts) -> Finding:
    found = facts.schema
    if found is None:
        return ok("registry", f"{facts.where}: empty, to be made by the first start")
    try:
        SCHEMA.accept(found, facts.where)
    except LoraplexError as error:
        return _told("registry", error.message)
    if found != SCHEMA.version:
        said = f"{facts.where}: schema {found}, which the first start brings to {SCHEMA.version}"
        remedy = "Back up first (loraplex registry backup): older releases can't write afterwards."
        return warning("registry", said, remedy)
    return ok("registry", f"{facts.where}: schema {found}, read and written")


def _admin_key(facts: RegistryFacts) -> list[Finding]:
    if facts.num_admin_keys is None:
        return []
    if not facts.num_admin_keys:
        return [failure("admin key", "there is none", "loraplex bootstrap --config FILE")]
    said = f"{facts.num_admin_keys} good"
    if facts.key_is_good is False:
        remedy = "Set LORAPLEX_ADMIN_KEY to a good one, or loraplex bootstrap --another."
        return [warning("admin key", f"{said}; the one given here is none of them", remedy)]
    return [ok("admin key", said)]


def check_redis(redis: RedisFacts) -> list[Finding]:
    findings = [_version(redis), _policy(redis)]
    if redis.role != "master":
        remedy = "Name the master, or its Sentinels with redis+sentinel://."
        findings.append(failure("redis role", redis.role, remedy))
    if redis.max_bytes and redis.used_bytes > FULL * redis.max_bytes:
        said = f"{gib(redis.used_bytes)} of {gib(redis.max_bytes)} used"
        findings.append(warning("redis memory", said, "Raise maxmemory: writes stop when full."))
    return [*findings, _replicas(redis), _persistence(redis)]


def _version(redis: RedisFacts) -> Finding:
    numbers = tuple(int(p) for p in redis.version.split(".")[:2] if p.isdecimal())
    if numbers < OLDEST_SERVER:
        return failure("redis", redis.version, "Use Redis 7.0 or later, or Valkey.")
    return ok("redis", redis.version)


def _policy(redis: RedisFacts) -> Finding:
    if redis.policy.startswith("allkeys"):
        remedy = "Set maxmemory-policy noeviction: this one drops records when memory is full."
        return failure("redis eviction", redis.policy, remedy)
    return ok("redis eviction", redis.policy)


def _replicas(redis: RedisFacts) -> Finding:
    wanted, said = redis.wanted_replicas, f"{redis.num_replicas} online"
    if wanted and redis.num_replicas < wanted:
        remedy = (
            "Start them, or ask for fewer (replicas= in the URL): until then nothing is written."
        )
        return failure("redis replicas", f"{said}, {wanted} asked for", remedy)
    if not redis.num_replicas:
        remedy = (
            "Add one and Sentinels, or set appendfsync always: else a lost server loses writes."
        )
        return warning("redis replicas", "none", remedy)
    return ok("redis replicas", said)


def _persistence(redis: RedisFacts) -> Finding:
    if not (redis.append_works and redis.snapshots):
        remedy = "Make room on its disk and see its log."
        return failure("redis persistence", "its last save failed", remedy)
    if not redis.append_only:
        remedy = "Set appendonly yes: else a restart loses what came after the last snapshot."
        return warning("redis persistence", "no append-only file", remedy)
    return ok("redis persistence", "append-only file")


def check_store(facts: StoreFacts) -> list[Finding]:
    if facts.open_problem:
        return [_told("store", facts.open_problem)]
    steps = {
        "store put": facts.put_problem,
        "store get": facts.get_problem,
        "store list": facts.list_problem,
        "store delete": facts.delete_problem,
    }
    findings = [_told(step, problem) for step, problem in steps.items() if problem]
    if not findings:
        findings = [ok("store", f"{facts.url}: put, get, list and delete work")]
    return findings if facts.skew_s is None else [*findings, _clock(facts.skew_s)]


def _clock(skew_s: float) -> Finding:
    said = f"this machine's is off the store's by {abs(skew_s):.0f} s"
    if abs(skew_s) >= SKEW_FAILURE_S:
        return failure("clock", f"{said}: it refuses such requests", "Set it; run an NTP client.")
    if abs(skew_s) >= SKEW_WARNING_S:
        return warning("clock", said, "Run an NTP client.")
    return ok("clock", said)


def _told(subject: str, message: str) -> Finding:
    """Our errors end with their remedy, in a sentence or more of its own."""
    said, stop, remedy = message.rstrip().partition(". ")
    return failure(subject, said + stop.strip(), remedy or TRY_LATER)
