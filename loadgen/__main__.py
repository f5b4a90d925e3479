"""The command line: `python -m loadgen list | publish | run | report | compare`.

Exit codes: 0 done, 1 it couldn't be done, 2 wrong usage, 130 ended by Ctrl-C (the report is there).
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.client.faults import Fault, FaultError
from loadgen.client.roster import RosterError
from loadgen.client.run import RunError
from loadgen.client.service import ServiceError
from loadgen.client.stream import PATHS, Endpoint
from loadgen.experiment import Experiment, Place, Publication, perform, write_report
from loadgen.report.slo import Slo
from loadgen.synthetic import ATTENTION, BaseError
from loadgen.workloads.arrival import Schedule
from loadgen.workloads.catalogue import SCENARIOS, scenario
from loadgen.workloads.scenario import WorkloadError

ERRORS = (WorkloadError, RosterError, RunError, FaultError, BaseError, ServiceError)
INTERRUPTED = 130
URL = "http://127.0.0.1:8000"

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Load for LLM services.")

ScenarioName = Annotated[str, typer.Option("--scenario", "-s", help="See `loadgen list`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter: name=value. Repeatable.")
]
Seed = Annotated[int, typer.Option(help="The same seed, the same requests.")]
Url = Annotated[str, typer.Option(envvar="LORAPLEX_URL", help="Of the service.")]
Home = Annotated[
    Path | None, typer.Option(help="A quickstart's data folder: its keys and base model.")
]
AdminKey = Annotated[
    str, typer.Option(envvar="LORAPLEX_ADMIN_KEY", help="For counters and publishing.")
]
RosterFile = Annotated[Path | None, typer.Option("--roster", help="Tenants, keys and models.")]


@app.command("list")
def list_scenarios(
    name: Annotated[str, typer.Argument(help="One scenario, with its parameters.")] = "",
) -> None:
    """The scenarios."""
    console = Console()
    if not name:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("scenario", no_wrap=True)
        table.add_column("what")
        for kind in SCENARIOS.values():
            table.add_row(kind.name, kind.summary())
        console.print(table)
        return
    try:
        kind = type(scenario(name, {}))
    except WorkloadError as error:
        _fail(error)
    console.print(Text(inspect.cleandoc(kind.__doc__ or "")), soft_wrap=True)
    console.print(f"\nSource: {kind.source}", highlight=False)
    for parameter, value in kind().parameters().items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        console.print(f"  --set {parameter}={shown}", highlight=False)


@app.command()
def publish(
    roster: Annotated[Path, typer.Option(help="Where keys and models are kept.")],
    name: ScenarioName = "s-lora",
    settings: Settings = None,
    seed: Seed = 1,
    url: Url = URL,
    admin_key: AdminKey = "",
    quickstart: Home = None,
    base: Annotated[Path | None, typer.Option(help="The base model's folder.")] = None,
    base_name: Annotated[str, typer.Option(help="As adapters name it.")] = "",
    ranks: Annotated[str, typer.Option(help="In turn, with commas.")] = "8",
    modules: Annotated[str, typer.Option(help="With commas.")] = ",".join(ATTENTION),
) -> None:
    """Make the tenants and synthetic adapters that a scenario asks for, where they are missing."""
    try:
        order = Publication(
            place=Place.of(url, admin_key, quickstart, roster),
            base=base,
            base_name=base_name,
            ranks=tuple(int(r) for r in ranks.split(",")),
            modules=tuple(modules.split(",")),
            seed=seed,
        )
        order.perform(_schedule(name, settings, seed), roster, Console(stderr=True))
    except ERRORS as error:
        _fail(error)
    except ValueError:
        _fail(WorkloadError(f"--ranks {ranks!r} are not numbers with commas."))


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="A folder for the run and its report.")],
    name: ScenarioName = "s-lora",
    settings: Settings = None,
    seed: Seed = 1,
    url: Url = URL,
    roster: RosterFile = None,
    admin_key: AdminKey = "",
    quickstart: Home = None,
    model: Annotated[list[str] | None, typer.Option(help="Instead of a roster.")] = None,
    api_key: Annotated[str, typer.Option(help="Of --model.")] = "",
    fold: Annotated[bool, typer.Option(help="Use too few tenants or models again.")] = False,
    endpoint: Annotated[str, typer.Option(help="chat or completions.")] = "completions",
    ignore_eos: Annotated[bool, typer.Option(help="Answers have the wanted length.")] = True,
    fault: Annotated[
        list[str] | None, typer.Option(help="SECONDS:COMMAND for the shell. Repeatable.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Of a request.")] = 600.0,
    drain_s: Annotated[float, typer.Option(help="For those that run at the end.")] = 60.0,
    slo_first_s: Annotated[float, typer.Option(help="To the first token.")] = 6.0,
    slo_token_s: Annotated[float, typer.Option(help="A later token, on average.")] = 0.2,
) -> None:
    """Run a scenario and write its report."""
    if endpoint not in PATHS:
        _fail(WorkloadError(f"--endpoint is one of {', '.join(PATHS)}."))
    try:
        place = Place.of(url, admin_key, quickstart, roster, tuple(model or ()), api_key)
        experiment = Experiment(
            schedule=_schedule(name, settings, seed),
            place=place,
            endpoint=Endpoint(place.url, endpoint, ignore_eos, timeout_s),
            faults=tuple(Fault.parse(text) for text in fault or ()),
            fold=fold or bool(model),
            drain_s=drain_s,
            slo=Slo(slo_first_s, slo_token_s),
        )
        interrupted = perform(experiment, out, Console())
    except ERRORS as error:
        _fail(error)
    if interrupted:
        sys.exit(INTERRUPTED)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="That `run` wrote.")],
    slo_first_s: Annotated[float, typer.Option(help="To the first token.")] = 6.0,
    slo_token_s: Annotated[float, typer.Option(help="A later token, on average.")] = 0.2,
) -> None:
    """Write a run's report anew, perhaps for another SLO."""
    try:
        write_report(folder, Slo(slo_first_s, slo_token_s), Console())
    except ERRORS as error:
        _fail(error)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A run's folder.")],
    second: Annotated[Path, typer.Argument(help="Another's.")],
    out: Annotated[Path, typer.Option(help="A folder for the comparison.")] = Path("compare"),
) -> None:
    """Put two runs side by side."""
    # Here, because it brings matplotlib: the other commands do without.
    from loadgen.report.compare import write_comparison  # noqa: PLC0415

    try:
        write_comparison(first, second, out)
    except ERRORS as error:
        _fail(error)
    Console().print(f"{out / 'compare.html'} and compare.md", highlight=False)


def _schedule(name: str, settings: list[str] | None, seed: int) -> Schedule:
    pairs = dict(_pair(text) for text in settings or ())
    return scenario(name, pairs).build(seed)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WorkloadError(f"--set {text!r}: write name=value.")
    return name, value


def _fail(error: Exception) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    app()
