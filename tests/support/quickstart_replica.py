"""One replica of the quickstart, its core and loader as processes, without Ray and HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.config import AppConfig, load
from deployments.ingress.catalog import Catalog
from deployments.ingress.chat_template import ChatTemplate
from deployments.ingress.tokenising import Tokeniser
from deployments.registry import open_registry
from deployments.replica.replica import Replica
from deployments.replica.replica_config import ReplicaConfig
from engine.model.revision import base_revision
from engine.model.spec import BackboneSpec
from engine.types import AdapterRef, Request, SamplingParams, Tenant
from tests.support.oracle import Answer, Run
from tests.support.service import TENANT_OF

GREEDY = SamplingParams(temperature=0.0)
BASE_TENANT = "acme"
MINUTES_S = 300.0


def prepare(project: Path, home: Path) -> None:
    """Model, tenants and adapters below `home`, as `make serve` makes them."""
    command = [sys.executable, "-m", "deployments.quickstart", "prepare", "--home", str(home)]
    subprocess.run(command, cwd=project, check=True)


@dataclass
class QuickstartReplica:
    """config: the quickstart's with a device and `replica` changed. refs: by adapter."""

    config: AppConfig
    refs: dict[str, AdapterRef]
    template: ChatTemplate
    tokeniser: Tokeniser
    replica: Replica

    @classmethod
    async def start(
        cls,
        project: Path,
        home: Path,
        *,
        core: str = "engine.core",
        leave: Callable[[int], object] = int,
        **replica: Any,
    ) -> QuickstartReplica:
        """Ready. core, leave: as in `Replica`."""
        (application,) = yaml.safe_load((project / "deployments/quickstart.yaml").read_text())[
            "applications"
        ]
        args = application["args"]
        args["replica"] = {**args["replica"], **replica}
        config = load(args, environ={"LORAPLEX_HOME": str(home)})
        catalog = Catalog(open_registry(config.registry_url), clock=time.monotonic)
        await catalog.refresh()
        refs = {a: await catalog.resolve(f"{t}/{a}", t) for a, t in TENANT_OF.items()}
        settings: ReplicaConfig = config.replica_config(
            base_revision(config.base.path, config.base.revision)
        )
        started = Replica(settings, slot=lambda: 0, leave=leave, core=core)
        await started.start()
        folder = config.base.path
        return cls(config, refs, ChatTemplate.load(folder), Tokeniser.load(folder), started)

    async def ask(self, prompt: str, adapter: str | None, run: Run, max_tokens: int) -> Answer:
        """Greedily, as a chat."""
        text = self.template.render([{"role": "user", "content": prompt}])
        (tokens,) = await self.tokeniser.encode([text], special_tokens=False)
        request = Request(
            f"{run.prompt}-{adapter}",
            Tenant(BASE_TENANT if adapter is None else TENANT_OF[adapter]),
            None if adapter is None else self.refs[adapter],
            tokens,
            max_tokens,
            GREEDY,
            stop_token_ids=BackboneSpec.load(self.config.base.path).eos_token_ids,
        )
        events = await self.events(request)
        assert "error" not in events[-1], events[-1]
        last = events[-1]
        return Answer(
            run,
            "".join(event["text"] for event in events),
            last["finish"],
            last["prompt_tokens"],
            last["completion_tokens"],
        )

    async def events(self, request: Request) -> list[dict[str, Any]]:
        """All that its stream brought."""
        call = {"v": 1, "requests": [request.to_wire()], "deadline_s": MINUTES_S}
        return [event async for events in self.replica.generate(call) for event in events]

    async def stop(self) -> None:
        await asyncio.to_thread(self.replica.shutdown)
