"""Prompts that are put to a version before any name stands for it. What fails ends the publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deployments.ingress.serving import Serving
from deployments.registry.version_record import Probe, VersionRecord
from deployments.rest.openai_protocol import ChatBody, CompletionBody, parse
from engine.errors import AdapterRejected, InvalidRequest, LoraplexError
from engine.types import Tenant

MAX_PROBES = 8
MAX_PROMPT_CHARS = 2000
MAX_ANSWER_TOKENS = 64
MAX_ANSWER_CHARS = 2000
TIMEOUT_S = 120.0
"""For one answer, the version's first load included."""


async def answered(
    serving: Serving,
    version: VersionRecord,
    tenant: Tenant,
    probes: Sequence[Probe],
    *,
    own: bool,
) -> VersionRecord:
    """`version` with `probes` and its greedy answers to them, one after the other.
    own: the tenant itself publishes, and they count against its bounds as its requests do.

    Raises AdapterRejected where an answer isn't as expected or can't be had for the version's sake,
    and what else keeps the service from answering, or the tenant from asking.
    """
    done = []
    for number, probe in enumerate(probes, 1):
        try:
            text = await _answer(serving, version, tenant, probe, f"probe-{number}", own)
        except LoraplexError as error:
            error.message = f"Probe {number} failed: {error.message}"
            if error.public is not None:
                error.public = f"Probe {number} failed: {error.public}"
            error.args = (error.message,)
            raise
        if probe.expect not in text:
            raise AdapterRejected(
                f"Probe {number}: the answer {text[:200]!r} does not contain"
                f" {probe.expect[:200]!r}. Nothing was published.",
                code="probe_failed",
                param="probes",
            )
        done.append(replace(probe, answer=text[:MAX_ANSWER_CHARS]))
    return replace(version, probes=tuple(done))


async def _answer(
    serving: Serving,
    version: VersionRecord,
    tenant: Tenant,
    probe: Probe,
    request_id: str,
    own: bool,
) -> str:
    fields = {"model": version.ref.key, "max_tokens": probe.max_tokens, "temperature": 0}
    body: ChatBody | CompletionBody
    if serving.prompts.template.exists:
        messages = [{"role": "user", "content": probe.prompt}]
        body = parse(ChatBody, {**fields, "messages": messages})
    else:
        body = parse(CompletionBody, {**fields, "prompt": probe.prompt})
    answer = await serving.answer_as(request_id, tenant, version.ref, body, TIMEOUT_S, own=own)
    choice = answer["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def check_probes(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    """Answer them. Raises InvalidRequest for more or longer ones than are taken."""
    if len(probes) > MAX_PROBES:
        raise InvalidRequest(f"At most {MAX_PROBES} probes are taken.", param="probes")
    for probe in probes:
        if not 0 < len(probe.prompt) <= MAX_PROMPT_CHARS or len(probe.expect) > MAX_PROMPT_CHARS:
            raise InvalidRequest(
                f"A probe's prompt has 1 to {MAX_PROMPT_CHARS} characters, and what it expects no"
                " more.",
                param="probes",
            )
        if not 1 <= probe.max_tokens <= MAX_ANSWER_TOKENS:
            raise InvalidRequest(
                f"A probe's max_tokens is 1 to {MAX_ANSWER_TOKENS}.", param="probes"
            )
    return tuple(probes)
