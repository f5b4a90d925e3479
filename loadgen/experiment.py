"""From a schedule to a report: who is asked with which keys, the run, and what is written."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import uvloop
from rich.console import Console
from rich.progress import Progress

from loadgen.client.faults import Fault
from loadgen.client.progress import show
from loadgen.client.roster import Binding, Member, Roster, RosterError
from loadgen.client.run import Facts, Run
from loadgen.client.runner import Result, Runner, session
from loadgen.client.service import Service, v1
from loadgen.client.stream import Endpoint
from loadgen.publishing import Kind, publish
from loadgen.quickstart import Quickstart
from loadgen.report.slo import Slo
from loadgen.synthetic import Base, BaseError
from loadgen.workloads.arrival import Schedule


@dataclass(frozen=True, slots=True)
class Place:
    """A service. url: with its /v1; admin_key "": nothing of it but its answers is known; base: its
    model's folder, base_name: how adapters name that."""

    url: str
    admin_key: str
    roster: Roster | None
    base: Path | None = None
    base_name: str = ""

    @classmethod
    def of(
        cls,
        url: str,
        admin_key: str,
        quickstart: Path | None,
        roster: Path | None,
        models: tuple[str, ...] = (),
        api_key: str = "",
    ) -> Self:
        """What a command line says. A roster goes before `models`, those before a quickstart's own
        tenants. Raises RosterError."""
        known = None if quickstart is None else Quickstart.read(quickstart)
        members = None if known is None else known.roster
        if models:
            members = Roster((Member("", api_key, models),))
        if roster is not None and roster.exists():
            members = Roster.read(roster)
        admin = admin_key or ("" if known is None else known.admin_key)
        if known is None:
            return cls(v1(url), admin, members)
        return cls(v1(url), admin, members, known.base, known.base_name)


@dataclass(frozen=True, slots=True)
class Publication:
    """What `publish` makes. ranks: in turn."""

    place: Place
    base: Path | None
    base_name: str
    ranks: Sequence[int]
    modules: Sequence[str]
    seed: int

    def perform(self, schedule: Schedule, target: Path, console: Console) -> None:
        """Raises RosterError, BaseError, ServiceError."""
        folder = self.base or self.place.base
        if folder is None:
            raise BaseError("Name the base model's folder: --base, or --quickstart.")
        base = Base.read(folder, self.base_name or self.place.base_name)
        kind = Kind(base, self.ranks, self.modules, self.seed)
        known = Roster.read(target) if target.exists() else None
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("publishing adapters", total=None)

            async def make() -> Roster:
                async with session() as http:
                    service = Service(http, self.place.url, self.place.admin_key)
                    return await publish(
                        service,
                        schedule.adapters,
                        kind,
                        known,
                        schedule.weights,
                        lambda done, total: progress.update(task, completed=done, total=total),
                    )

            uvloop.run(make()).write(target)
        num_adapters = sum(map(len, schedule.adapters.values()))
        console.print(
            f"{len(schedule.adapters)} tenants with {num_adapters} adapters are there; {target}",
            highlight=False,
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run to make. fold: see `Roster.bind`."""

    schedule: Schedule
    place: Place
    endpoint: Endpoint
    faults: Sequence[Fault]
    fold: bool
    drain_s: float
    slo: Slo

    def binding(self) -> Binding:
        """Raises RosterError."""
        if self.place.roster is None or not self.place.roster.members:
            raise RosterError("Say whom to ask: --roster (`loadgen publish` writes it) or --model.")
        return self.place.roster.bind(self.schedule.adapters, self.fold)


def perform(experiment: Experiment, out: Path, console: Console) -> bool:
    """Run, and write the run and its report into `out`; whether it was ended early."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    result = uvloop.run(_run(experiment, console))
    schedule = experiment.schedule
    facts = Facts(
        scenario=schedule.scenario,
        seed=schedule.seed,
        parameters=schedule.parameters,
        shares=asdict(schedule.shares),
        digest=schedule.digest(),
        num_scheduled=len(schedule.arrivals),
        duration_s=schedule.duration_s,
        weights=schedule.weights,
        url=experiment.place.url,
        began=began,
        wall_s=round(result.wall_s, 3),
        interrupted=result.interrupted,
        settings={
            "endpoint": experiment.endpoint.kind,
            "ignore_eos": experiment.endpoint.ignore_eos,
            "timeout_s": experiment.endpoint.timeout_s,
            "drain_s": experiment.drain_s,
            "fold": experiment.fold,
        },
        faults=result.faults,
    )
    Run(facts, result.outcomes, result.samples).write(out)
    write_report(out, experiment.slo, console)
    return result.interrupted


def write_report(folder: Path, slo: Slo, console: Console) -> None:
    """Of the run in `folder`, into it. Raises RunError."""
    # Here, because it brings matplotlib: a run does without.
    from loadgen.report.files import write  # noqa: PLC0415
    from loadgen.report.terminal import show_summary  # noqa: PLC0415

    report = write(Run.read(folder), slo, folder)
    show_summary(report, console)
    console.print(f"\n{folder / 'report.html'}, report.md, report.json", highlight=False)


async def _run(experiment: Experiment, console: Console) -> Result:
    schedule, place = experiment.schedule, experiment.place
    runner = Runner(
        schedule,
        experiment.binding(),
        experiment.endpoint,
        time.monotonic,
        experiment.faults,
        experiment.drain_s,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, runner.stop)
    async with session() as http:
        service = Service(http, place.url, place.admin_key) if place.admin_key else None
        progress = asyncio.create_task(
            show(console, runner.tally, runner.now_s, schedule.duration_s)
        )
        try:
            return await runner.run(http, service)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
