"""Recorded traffic, from CSV, JSON or JSONL, told apart by its columns.

Azure's LLM inference traces, BurstGPT, ShareGPT, and our own columns: time_s, tenant, adapter,
input_tokens, output_tokens, session. What a trace doesn't say of adapters is drawn.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from loadgen.workloads import draws
from loadgen.workloads.arrival import Arrival
from loadgen.workloads.popularity import power_indices
from loadgen.workloads.scenario import Scenario, WorkloadError, adapter_name, tenant_name

Row = Mapping[str, Any]
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a trace. time_s: None where it has none; adapter "": the trace names none."""

    time_s: float | None
    input_tokens: int
    output_tokens: int
    tenant: str = ""
    adapter: str = ""
    session: str = ""


@dataclass(frozen=True, kw_only=True)
class Trace(Scenario):
    """Recorded traffic of a file: Azure, BurstGPT, ShareGPT or our own columns.

    path       of the file
    rate       > 0: times are stretched so that the mean rate is this; a trace without times, such
               as ShareGPT, is a Poisson process of this rate, or of 1 a second
    adapters, tenants, alpha  how requests that name no adapter are spread (as s-lora's)
    max_tokens longer prompts and answers are cut to this
    """

    name: ClassVar[str] = "trace"
    source: ClassVar[str] = "AzureLLMInferenceDataset 2023/2024, BurstGPT, ShareGPT_V3"

    path: str = ""
    rate: float = 0.0
    adapters: int = 20
    tenants: int = 5
    alpha: float = 0.6
    max_tokens: int = 2048

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        if not self.path:
            raise WorkloadError("A trace needs a file: --set path=FILE.")
        entries = list(read_trace(Path(self.path)))
        if not entries:
            raise WorkloadError(f"{self.path} has no requests.")
        times = self._times(entries, seed)
        random = draws.stream(seed, "adapters")
        drawn = power_indices(random, self.alpha, self.adapters, len(entries))
        names: dict[str, int] = {}
        for entry, time_s, index in zip(entries, times, drawn, strict=True):
            number = names.setdefault(entry.adapter, len(names)) if entry.adapter else index
            yield Arrival(
                time_s,
                entry.tenant or tenant_name(number % self.tenants),
                adapter_name(number),
                min(max(1, entry.input_tokens), self.max_tokens),
                min(max(1, entry.output_tokens), self.max_tokens),
                entry.session,
            )

    def _times(self, entries: list[Entry], seed: int) -> list[float]:
        known = [e.time_s for e in entries if e.time_s is not None]
        if len(known) < len(entries):
            rate = (self.rate or 1.0) * self.rate_factor
            return draws.gamma_times(draws.stream(seed, "times"), rate, 1.0, len(entries))
        first, span = min(known), max(known) - min(known)
        wanted = self.rate or (len(known) / span if span else 1.0)
        stretch = len(known) / (span * wanted * self.rate_factor) if span else 1.0
        return [draws.whole((t - first) * stretch) for t in known]


def read_trace(path: Path) -> Iterator[Entry]:
    """Its requests, in the file's order. Raises WorkloadError for what can't be read."""
    try:
        for number, row in enumerate(_rows(path), start=1):
            reader = next((r for columns, r in READERS if columns <= row.keys()), None)
            if reader is None:
                raise WorkloadError(
                    f"{path}: the columns {', '.join(map(str, row))} are of no trace known here."
                    " Rename yours to input_tokens, output_tokens and, where there are, time_s,"
                    " tenant, adapter, session."
                )
            try:
                yield from reader(row)
            except (KeyError, TypeError, ValueError) as error:
                raise WorkloadError(f"{path}, request {number}: {error!r}.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WorkloadError(f"{path} can't be read: {error}.") from None


def _rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        elif path.suffix == ".jsonl":
            yield from (json.loads(line) for line in file if line.strip())
        else:
            yield from json.load(file)


def _own(row: Row) -> Iterator[Entry]:
    time_s = row.get("time_s")
    yield Entry(
        time_s=None if time_s in (None, "") else float(time_s),
        input_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        tenant=str(row.get("tenant") or ""),
        adapter=str(row.get("adapter") or ""),
        session=str(row.get("session") or ""),
    )


def _azure(row: Row) -> Iterator[Entry]:
    stamp = str(row["TIMESTAMP"]).replace("Z", "+00:00")
    # Seven digits of a second's fraction are one more than Python reads.
    whole, _, fraction = stamp.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    zone = fraction[len(digits) :]
    moment = datetime.fromisoformat(f"{whole if fraction else stamp}{zone}").timestamp()
    seconds = moment + (float(f"0.{digits}") if digits else 0.0)
    yield Entry(seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _burstgpt(row: Row) -> Iterator[Entry]:
    entry = Entry(
        float(row["Timestamp"]),
        int(float(row["Request tokens"])),
        int(float(row["Response tokens"])),
        adapter=str(row.get("Model") or ""),
        session=str(row.get("Session ID") or ""),
    )
    if entry.output_tokens > 0:  # 0: the request failed where it was recorded
        yield entry


def _sharegpt(row: Row) -> Iterator[Entry]:
    """A conversation: each answer is a request whose prompt is all that was said before it."""
    said = 0
    for turn in row["conversations"]:
        size = max(1, len(turn["value"]) // CHARS_PER_TOKEN)
        if turn["from"] in ("gpt", "assistant", "chatgpt") and said:
            yield Entry(None, said, size, session=str(row.get("id") or ""))
        said += size


READERS: tuple[tuple[frozenset[str], Callable[[Row], Iterator[Entry]]], ...] = (
    (frozenset({"input_tokens", "output_tokens"}), _own),
    (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    (frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burstgpt),
    (frozenset({"conversations"}), _sharegpt),
)
