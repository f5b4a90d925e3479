"""Every metric of the service.

Dashboards, alert rules and the table in docs/observability.md are made from this file, so none of
them can name what isn't here.

Values of the labels `tenant` and `adapter` are bounded: those with most traffic, and OTHER
(`telemetry.ranking`). An adapter's is tenant/name@ and the first twelve digits of the version's
digest, the base model's BASE.
"""

from __future__ import annotations

from deployments.telemetry.instrument import Instrument, Where, counter, gauge, histogram
from engine.histogram import ADAPTERS, STEP_SECONDS

_I, _R, _C = Where.INGRESS, Where.REPLICA, Where.CONTROL

# Requests, as clients see them -------------------------------------------------------------------
REQUESTS = counter(
    _I,
    "requests",
    "{request}",
    "Requests for an answer that have ended, by HTTP status and error code (ok: none). 499: the"
    " client went away. 401 has no tenant.",
    "tenant",
    "adapter",
    "status",
    "code",
)
REQUESTS_ACTIVE = gauge(_I, "requests.active", "{request}", "Requests in progress in an ingress.")
REFUSALS = counter(
    _I,
    "admission.refusals",
    "{request}",
    "Requests not let in (429, or 503 of a full ingress), by the error code that says why.",
    "tenant",
    "code",
)
LOSSES = counter(
    _I,
    "replica.losses",
    "{request}",
    "Requests that lost their replica (replica_lost) or whose core died (core_lost), also those"
    " that another replica then answered.",
    "code",
)
REQUEST_DURATION = histogram(
    _I, "request.duration", "From a request's arrival to its last token or its error.", "status"
)
TENANT_FIRST_TOKEN = histogram(
    _I, "tenant.first_token", "From a request's arrival to its first token, by tenant.", "tenant"
)
ADAPTER_FIRST_TOKEN = histogram(
    _I, "adapter.first_token", "From a request's arrival to its first token, by adapter.", "adapter"
)
POPULARITY_FIRST_TOKEN = histogram(
    _I,
    "popularity.first_token",
    "From a request's arrival to its first token, of the tenth of the tenants with least traffic"
    " (bottom_decile), pooled, and of the others (rest).",
    "tenants",
)
TOKEN_INTERVAL = histogram(
    _I,
    "request.token_interval",
    "Mean time between two tokens of a sequence, one value for each sequence that has ended.",
    bounds=STEP_SECONDS,
)
TOKENS = counter(
    _I,
    "tokens",
    "{token}",
    "Tokens of answered sequences: of prompts (prompt), of those from the prefix cache (cached),"
    " and of answers (completion).",
    "tenant",
    "adapter",
    "type",
)

# The router and the copy of the registry, in each ingress -----------------------------------------
PLACEMENTS = counter(
    _I,
    "router.placements",
    "{request}",
    "Requests by why they went where they went; resident, spill and least_loaded left their ring"
    " owner.",
    "reason",
)
ROUTER_WAITS = counter(
    _I, "router.waits", "{request}", "Requests that found every replica full at first."
)
ROUTER_HINTS = counter(
    _I, "router.hints", "{hint}", "Replicas told to prepare for an adapter's overflow."
)
PICKS = counter(_I, "router.picks", "{pick}", "Placements tried.")
PICK_TIME = counter(_I, "router.pick_time", "s", "Time that placing took, summed.")
REGISTRY_ERRORS = counter(
    _I, "registry.errors", "{error}", "Refreshes of the copy of the registry that failed."
)
REGISTRY_AGE = gauge(
    _I, "registry.age", "s", "Time since the copy of the registry was last known to be fresh."
)

# Queue and accounts, in each replica --------------------------------------------------------------
QUEUE_REQUESTS = gauge(
    _R,
    "queue.requests",
    "{request}",
    "Sequences with a row (running), waiting for their adapter (warming) and waiting for room"
    " alone (ready).",
    "state",
)
QUEUE_WAIT = gauge(_R, "queue.wait", "s", "How long those that wait have waited, on average.")
TENANT_QUEUE = histogram(
    _R, "tenant.queue", "From a sequence's arrival in the core to its row, by tenant.", "tenant"
)
ADAPTER_QUEUE = histogram(
    _R, "adapter.queue", "From a sequence's arrival in the core to its row, by adapter.", "adapter"
)
ACCOUNT_LAG = gauge(
    _R,
    "account.lag",
    "{token}",
    "Of the tenants that have requests waiting, the largest account less the least, in weighted"
    " tokens.",
)
PREEMPTIONS = counter(
    _R, "preemptions", "{sequence}", "Sequences that lost their row and are computed again."
)

# Steps --------------------------------------------------------------------------------------------
STEPS = counter(
    _R, "steps", "{step}", "Steps, by whether the pass was replayed from a graph.", "replayed"
)
STEP_DURATION = histogram(_R, "step.duration", "One step on the device.", bounds=STEP_SECONDS)
STEP_ADAPTERS = histogram(_R, "step.adapters", "Different adapters in one step.", bounds=ADAPTERS)
STEP_BUSY = counter(
    _R, "step.busy", "s", "Steps whose cost without adapters was measured at the start, summed."
)
STEP_BASE = counter(
    _R, "step.base", "s", "What those steps would have taken without adapters, summed."
)
CORE_TOKENS = counter(
    _R,
    "core.tokens",
    "{token}",
    "Tokens in the core: of admitted prompts (prompt), of those cached (cached), drawn (output).",
    "type",
)

# Adapters -----------------------------------------------------------------------------------------
ARRIVALS = counter(
    _R,
    "adapter.arrivals",
    "{request}",
    "Sequences by where their adapter was when they came: device is a hit, host and cold are"
    " misses. cold is the local disk or the store: which of them, the loads say.",
    "tier",
)
STALLS = histogram(
    _R,
    "adapter.stall",
    "Sequences whose adapter was what they waited for: they got their row in the step before which"
    " it came. From arrival to then. Other misses waited for room as well, and lost nothing.",
)
LOADS = counter(
    _R,
    "adapter.loads",
    "{load}",
    "Loads into host memory, by where from (disk, store), for what (request, order: an"
    " operator's, hint) and outcome (ok or an error code).",
    "source",
    "cause",
    "outcome",
)
LOAD_DURATION = histogram(_R, "adapter.load", "One load into host memory, by where from.", "source")
UPLOAD_DURATION = histogram(
    _R, "adapter.upload", "One copy from host memory to the device.", bounds=STEP_SECONDS
)
RESIDENTS = gauge(
    _R,
    "adapter.residents",
    "{adapter}",
    "Versions that are loading, in host memory, on the device, and pinned.",
    "place",
)
QUARANTINES = counter(
    _R,
    "adapter.quarantines",
    "{adapter}",
    "Versions refused for a while since their output was not finite time and again.",
)

# What tenants use, as /v1/usage has it ------------------------------------------------------------
TENANT_DEVICE = counter(
    _R, "tenant.device_time", "s", "Device time of steps, divided between their rows.", "tenant"
)
TENANT_LOADED = counter(
    _R, "tenant.loaded", "By", "Bytes of adapters that came into host memory.", "tenant"
)
TENANT_RESIDENT = counter(
    _R,
    "tenant.resident",
    "By.s",
    "Bytes of adapters times the time that they had room there (host, device).",
    "tenant",
    "tier",
)

# The arena ----------------------------------------------------------------------------------------
ARENA = gauge(
    _R,
    "arena.size",
    "By",
    "The arena by what it holds: KV of running sequences, cached prefixes, adapters, nothing.",
    "use",
)
ROUNDING = gauge(
    _R,
    "arena.rounding",
    "By",
    "Of the adapters' part, what holds nothing since adapters take whole pages.",
)
ARENA_ADAPTERS = gauge(
    _R, "arena.adapters", "{adapter}", "Adapters that have a place in the arena."
)
MOVES = counter(_R, "arena.moves", "{move}", "Pages and runs moved to make room side by side.")
EVICTIONS = counter(
    _R, "arena.evictions", "{eviction}", "What made way for others: adapter or prefix page.", "kind"
)

# Processes ----------------------------------------------------------------------------------------
CORE_STARTED = gauge(_R, "core.start_time", "s", "When the core was ready, in Unix seconds.")
CORE_DEATHS = counter(
    _C,
    "core.deaths",
    "{core}",
    "Cores that have ended by themselves, under requests or none, as their replicas told.",
)
LOADER_RESTARTS = counter(
    _R, "loader.restarts", "{restart}", "Times the loader ended and was started again."
)
PUBLISHES = counter(
    _C, "publishes", "{publish}", "Publishes, by outcome (ok or an error code).", "outcome"
)
SWEEPS = counter(
    _C,
    "sweeps",
    "{sweep}",
    "Sweeps of the object store, by outcome (ok or an error code).",
    "outcome",
)
GATE_ROLLBACKS = counter(
    _C, "gate.rollbacks", "{rollback}", "Canaries that the canary gate has rolled back."
)

ALL: tuple[Instrument, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Instrument)
)
