"""The quickstart's commands: `python -m deployments.quickstart prepare | serve`."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.text import Text

from deployments.changes.tenants import Tenants
from deployments.config import AppConfig, load
from deployments.quickstart.banner import Facts, show
from deployments.quickstart.lock import DataLock
from deployments.quickstart.model import ModelSource, prepare_model
from deployments.quickstart.service import Service, ServiceOptions, require_free
from deployments.quickstart.tenants import (
    ADAPTERS_FOLDER,
    ADMIN,
    DemoKeys,
    missing_adapters,
    prepare_tenants,
    publish_adapters,
)
from deployments.registry import open_registry
from engine.errors import LoraplexError
from engine.model.revision import base_revision

CONFIG = Path(__file__).parents[1] / "quickstart.yaml"
READY_S = 300.0
WATCH_S = 0.5

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Home = Annotated[Path, typer.Option(help="Where .loraplex/ is made.", file_okay=False)]


class StopRequests:
    """Counts SIGINT, SIGTERM and SIGHUP while entered; none of them ends the process by itself."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def __enter__(self) -> StopRequests:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pause(self, seconds: float) -> bool:
        """Wait for at most `seconds`; True as soon as there is a new request."""
        asked = self._asked.wait(seconds)
        self._asked.clear()
        return asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()


@app.command()
def prepare(home: Home = Path()) -> None:
    """Make the model, the tenants and their adapters, where they are missing."""
    console = Console()
    with _reported(console):
        _prepare(_config(home), console)


@app.command()
def serve(
    home: Home = Path(),
    port: Annotated[int, typer.Option(help="Where it answers.", min=1, max=65535)] = 8000,
    dtype: Annotated[str | None, typer.Option(help="Instead of the config's.")] = None,
    order: Annotated[
        str | None, typer.Option(help="Of accounts: deficit, vtc or fcfs; docs/fairness.md.")
    ] = None,
    max_step_s: Annotated[
        float | None, typer.Option(help="How long a step may take, instead of the config's.")
    ] = None,
) -> None:
    """Prepare, run the service in the foreground, and end all of it on Ctrl-C."""
    console = Console()
    began = time.monotonic()
    with _reported(console):
        config = _config(home)
        config.data_dir.mkdir(parents=True, exist_ok=True)
        lock = DataLock(config.data_dir)
        require_free(port)
        keys = _prepare(config, console)
        options = ServiceOptions(
            CONFIG, home.resolve(), config.data_dir, port, dtype, order, max_step_s
        )
        with StopRequests() as stops:
            service = Service(options)
            ready = False
            try:
                with console.status("starting") as status:
                    ready = service.wait_ready(READY_S, status.update, stops.pause)
                if ready:
                    show(console, _facts(config, service, keys))
                    console.print(f"[dim]ready after {time.monotonic() - began:.0f} s[/]")
                    while not stops.pause(WATCH_S):
                        service.require_running()
            finally:
                console.print("\nstopping (Ctrl-C again: at once)")
                # Before it was ready no request waits for an answer, and Ray may not listen yet.
                if not service.stop(stops.pause if ready else lambda seconds: True):
                    console.print("[red]some processes could not be ended[/]")
                lock.close()


def _facts(config: AppConfig, service: Service, keys: Mapping[str, str]) -> Facts:
    return Facts(
        url=service.url,
        keys=keys,
        base=config.base.name,
        devices=service.devices(keys[ADMIN]),
        dashboard=service.dashboard,
        import_root=config.import_root,
        program=Path(sys.executable).with_name("loraplex"),
        has_gpu=Path("/dev/nvidia0").exists(),
    )


def _config(home: Path) -> AppConfig:
    """What the service itself will read, with relative paths below `home`."""
    (application,) = yaml.safe_load(CONFIG.read_text())["applications"]
    return load(application["args"], environ={"LORAPLEX_HOME": str(home)})


def _prepare(config: AppConfig, console: Console) -> Mapping[str, str]:
    """Model, tenants and adapters; the demo keys by tenant and `admin`."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    if config.import_root is not None:
        config.import_root.mkdir(parents=True, exist_ok=True)
    prepare_model(config.base.path, ModelSource(), console)
    registry = open_registry(config.registry_url)
    tenants = Tenants(registry, clock=time.time, random_bytes=secrets.token_bytes)
    keys = prepare_tenants(DemoKeys(config.data_dir / "keys.json", registry), tenants)
    if missing := missing_adapters(registry, base_revision(config.base.path)):
        with console.status("publishing the adapters"):
            # Here, because it brings torch: a second start does without.
            from deployments.control.control import Control  # noqa: PLC0415

            # Here on the CPU, whatever serves: what is checked is the same on every device.
            here = config.model_copy(update={"import_root": ADAPTERS_FOLDER}).placed(num_gpus=0)
            control = Control(here)
            asyncio.run(publish_adapters(control, missing))
            control.close()
    registry.close()
    return keys


@contextmanager
def _reported(console: Console) -> Iterator[None]:
    """Errors of ours, and of the disk, end the command with their message alone."""
    try:
        yield
    except LoraplexError as error:
        message = error.message
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = (
            f"{where}{error.strerror}. The quickstart's data is read from and written to"
            " .loraplex/; what is removed there is made again."
        )
    else:
        return
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    app()
