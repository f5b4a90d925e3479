"""Checks of the base model's folder: whole, served, and with what a chat needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments.doctor.findings import Finding, failure, gib, ok, warning
from engine.adapters.tensorfile import TensorFile, TensorFileError
from engine.errors import LoraplexError
from engine.model.checkpoint import weight_files
from engine.model.spec import BackboneSpec

COPY_AGAIN = "Download or copy the model folder again; with git, git lfs pull."


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was found in the folder.

    spec_problem    why config.json can't be served; then nothing else is known
    file_problems   of a weight file, by name
    missing         tensors that the model needs and no file has
    """

    path: str
    spec_problem: str = ""
    weight_bytes: int = 0
    file_problems: Mapping[str, str] | None = None
    missing: tuple[str, ...] = ()
    tokenizer_problem: str = ""
    template_problem: str = ""


def look_at_model(folder: Path) -> ModelFacts:
    """Reads headers and never a weight."""
    path = str(folder)
    try:
        spec = BackboneSpec.load(folder)
    except (LoraplexError, OSError, ValueError) as error:
        return ModelFacts(path, spec_problem=_text(error))
    problems: dict[str, str] = {}
    names: set[str] = set()
    num_bytes = 0
    try:
        files = weight_files(folder)
    except (LoraplexError, OSError, ValueError, KeyError) as error:
        problems["weights"], files = _text(error), ()
    for file in files:
        try:
            with TensorFile(file) as opened:
                names |= set(opened.tensors)
                num_bytes += opened.num_bytes
        except (TensorFileError, OSError) as error:
            problems[file.name] = _text(error)
    wanted = {f"{m.name}.weight" for m in spec.modules.modules} | {"model.norm.weight"}
    if spec.tied_head:
        wanted.discard("lm_head.weight")
    missing = () if problems else tuple(sorted(wanted - names))
    return ModelFacts(
        path,
        weight_bytes=num_bytes,
        file_problems=problems,
        missing=missing,
        tokenizer_problem=_tokenizer(folder),
        template_problem=_template(folder),
    )


def check_model(facts: ModelFacts) -> list[Finding]:
    if facts.spec_problem:
        remedy = "base.path names a Hugging Face folder of Llama, Mistral, Qwen2 or Qwen3."
        return [failure("model", f"{facts.path}: {facts.spec_problem}", remedy)]
    findings = [
        failure("model", f"{name}: {problem}", COPY_AGAIN)
        for name, problem in (facts.file_problems or {}).items()
    ]
    if facts.missing:
        said = f"{len(facts.missing)} tensors are in no file, such as {facts.missing[0]}"
        findings.append(failure("model", said, COPY_AGAIN))
    if facts.tokenizer_problem:
        remedy = "Add the model's tokenizer.json (save_pretrained of a fast tokenizer)."
        findings.append(failure("tokenizer", facts.tokenizer_problem, remedy))
    if facts.template_problem:
        remedy = "Add the model's template; until then only /v1/completions answers."
        findings.append(warning("chat template", facts.template_problem, remedy))
    if not findings:
        return [ok("model", f"{facts.path}, {gib(facts.weight_bytes)} of weights")]
    return findings


def _tokenizer(folder: Path) -> str:
    from deployments.ingress.tokenising import Tokeniser  # noqa: PLC0415  only for this

    if not (folder / "tokenizer.json").exists():
        return "there is no tokenizer.json"
    try:
        Tokeniser.load(folder)
    except LoraplexError as error:
        return _text(error)
    return ""


def _template(folder: Path) -> str:
    from deployments.ingress.chat_template import ChatTemplate  # noqa: PLC0415  jinja, only for this

    try:
        return "" if ChatTemplate.load(folder).exists else "there is none"
    except (LoraplexError, OSError, ValueError) as error:
        return _text(error)


def _text(error: Exception) -> str:
    return str(getattr(error, "message", error)) or type(error).__name__
