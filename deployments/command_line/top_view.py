"""`loraplex top` in a terminal of any width from 80 columns on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployments.command_line.top_figures import Figures, ReplicaFigures, TenantFigures, Work

WIDE = 120
"""Columns from which on the tables say more."""
REPLICAS = 0.2
"""The part of a screen's lines that replicas may take; the others are counted."""


def view(told: Figures, url: str, width: int, height: int | None = None) -> RenderableType:
    """height None: as long as it gets."""
    wide = width >= WIDE
    most = len(told.replicas) if height is None else max(2, int(REPLICAS * height))
    return Group(
        _title(told, url),
        Text(),
        _summary(told, 3 if wide else 1),
        Text(),
        _replicas(told.replicas, most, wide),
        Text(),
        _tenants(told, wide),
    )


def num_lines(console: Console, shown: RenderableType) -> int:
    return len(console.render_lines(shown, pad=False))


def _title(told: Figures, url: str) -> Text:
    ready = sum(r.ready for r in told.replicas)
    at = time.strftime("%H:%M:%S", time.localtime(told.at_s))
    text = Text.assemble(("loraplex top", "bold"), f"  {url}  {at}  ")
    style = "green" if ready == len(told.replicas) and ready else "bold red"
    return text.append(f"{ready} of {len(told.replicas)} replicas ready", style)


def _summary(told: Figures, num_loads: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    work, places = told.work, told.adapters
    if work is None:
        grid.add_row("requests", "no replica has said anything yet")
        return grid
    grid.add_row("requests", _requests(work))
    grid.add_row("tokens", _tokens(work))
    grid.add_row("steps", _steps(work))
    grid.add_row(
        "adapters",
        f"{places['device']:,} on devices, {places['host']:,} in host memory,"
        f" {places['loading']:,} loading, {places['pinned']:,} pinned",
    )
    grid.add_row("", _traffic(work))
    grid.add_row(
        "pages",
        f"{work.num_pages:,}: {work.held:.0%} running sequences, {work.cached:.0%} adapters and"
        f" cached prefixes, {max(0.0, 1 - work.held - work.cached):.0%} free",
    )
    grid.add_row("loading", _loading(told.loading, places["loading"], num_loads))
    return grid


def _requests(work: Work) -> Text:
    text = Text(f"{work.running:,} running of {work.max_rows:,} rows, {work.waiting:,} queued")
    if work.waiting:
        text.append(f" for {_seconds(work.queue_s)} on average")
    if work.warming:
        text.append(f", {work.warming:,} of them stalled until their adapter comes", "yellow")
    return text


def _tokens(work: Work) -> str:
    cached = "" if work.cached_share is None else f" ({work.cached_share:.0%} of prompts cached)"
    return f"{work.tokens_s:,.0f}/s drawn, {work.prompt_s:,.0f}/s of prompts read{cached}"


def _steps(work: Work) -> str:
    parts = [f"{work.steps_s:,.0f}/s"]
    parts.append(f"p50 {_seconds(work.step_p50_s)}, p99 {_seconds(work.step_p99_s)}")
    if work.rows_a_step is not None and work.prompt_a_step is not None:
        parts.append(f"{work.rows_a_step:.1f} rows and {work.prompt_a_step:.1f} prompt tokens each")
    parts.append(f"{work.adapters_now:,} adapters in batches now")
    if work.graph_share:
        parts.append(f"{work.graph_share:.0%} from graphs")
    return ", ".join(parts)


def _traffic(work: Work) -> str:
    hits = "no requests for adapters" if work.hit_share is None else f"hits {work.hit_share:.0%}"
    stalls = "" if work.stall_s is None else f" of {_seconds(work.stall_s)}"
    return (
        f"{hits}, {work.misses_s:.1f}/s misses, {work.stalls_s:.1f}/s stalls{stalls},"
        f" {work.loads_s:.1f}/s loads, {work.evictions_s:.1f}/s evictions,"
        f" {work.preemptions_s:.1f}/s preemptions"
    )


def _loading(keys: Sequence[str], num: int, num_shown: int) -> str:
    if not keys:
        return "-"
    shown = [f"{tenant}/{digest[:12]}" for tenant, _, digest in map(_parted, keys[:num_shown])]
    more = num - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _parted(key: str) -> tuple[str, str, str]:
    return key.partition("/")


def _replicas(replicas: Sequence[ReplicaFigures], most: int, wide: bool) -> Table:
    """Those that aren't ready first, where not all are shown."""
    table = _table("replica", "rows", "queued", "stalled", "tok/s", "p50", "p99", "dev/host/load")
    if wide:
        for name in ("pages used", "hits", "graphs", "failed"):
            table.add_column(name, justify="right")
    hidden: Sequence[ReplicaFigures] = ()
    if len(replicas) > most:
        worst = sorted(replicas, key=lambda r: (r.ready, -(r.work.waiting if r.work else 0)))
        replicas, hidden = worst[: most - 1], worst[most - 1 :]
    for replica in replicas:
        places, work = replica.adapters, replica.work
        state = ("" if replica.ready else "not ready ") + replica.device
        which = Text(f"{replica.slot} {state}", "" if replica.ready else "bold red")
        counts = f"{places['device']}/{places['host']}/{places['loading']}"
        if work is None:
            table.add_row(which, *["-"] * 6, counts)
            continue
        cells = [
            f"{work.running}/{work.max_rows}",
            f"{work.waiting:,}",
            f"{work.warming:,}",
            f"{work.tokens_s:,.0f}",
            _seconds(work.step_p50_s),
            _seconds(work.step_p99_s),
            counts,
        ]
        more = [
            f"{work.held + work.cached:.0%}",
            _share(work.hit_share),
            _share(work.graph_share),
            str(replica.num_failed),
        ]
        table.add_row(which, *cells, *(more if wide else ()))
    if hidden:
        waiting = sum(r.work.waiting for r in hidden if r.work)
        table.add_row(Text(f"{len(hidden)} others", "italic"), "", f"{waiting:,}")
    return table


def _tenants(told: Figures, wide: bool) -> Table:
    table = _table("tenant", "running", "queued", "tok/s", "share", "fair", "lag")
    table.columns[0].max_width = 63 if wide else 28
    table.columns[0].overflow = "ellipsis"
    if wide:
        table.add_column("weight", justify="right")
    for tenant in told.tenants:
        table.add_row(*_tenant(tenant), *([f"{tenant.weight:g}"] if wide else ()))
    others = told.others
    if others["num_tenants"]:
        table.add_row(
            Text(f"{others['num_tenants']:,} others", "italic"),
            f"{others['running']:,}",
            f"{others['waiting']:,}",
            f"{others['tokens_s']:,.0f}",
            _fine(others["share"]),
        )
    if not told.tenants:
        table.add_row(Text("nobody asks for anything", "italic"))
    return table


def _tenant(tenant: TenantFigures) -> list[str]:
    return [
        tenant.id,
        f"{tenant.running:,}",
        f"{tenant.waiting:,}",
        f"{tenant.tokens_s:,.0f}",
        _fine(tenant.share),
        _fine(tenant.fair) if tenant.fair else "-",
        f"{tenant.lag:,.0f}",
    ]


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _fine(share: float) -> str:
    """Of hundreds of tenants each has less than one percent."""
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
