"""The shape of the code: who imports whom, what stays free of torch, where the environment is read.

Rules are read from the source, so they hold for code that no test runs. The few that only a running
interpreter can show (what `import` really loads) start one.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.imports import PACKAGES, Module, SourceTree

ROOT = Path(__file__).parent.parent
TREE = SourceTree(ROOT)

OURS_ALLOWED = {
    "kernels": ("kernels",),
    "engine": ("engine", "kernels"),
    "router": ("router", "engine.types", "engine.errors"),
    "deployments": ("deployments", "engine", "router"),
    "loadgen": ("loadgen",),
}
FOREIGN_FORBIDDEN = {
    "kernels": {"ray", "redis", "fastapi"},
    "engine": {"ray", "fastapi", "transformers", "peft"},
    "router": {"torch"},
    "deployments": {"triton", "transformers", "peft"},
    "loadgen": {"ray", "torch"},
}
RAY_IN_ROUTER = {"router.request_router"}

STEP_LOOP = ("engine.engine", "engine.core", "engine.bench")
"""Modules, with all below them, that a bare GPU machine runs."""
STEP_LOOP_NEEDS = {"torch", "triton", "safetensors", "numpy"}
"""numpy: safetensors and torch exchange arrays with it; every torch machine has it."""

WITHOUT_TORCH = (
    "engine.types",
    "engine.errors",
    "engine.config",
    "engine.messages",
    "router.request_router",
    "deployments.app",
    "deployments.ingress.ingress",
    "deployments.replica.replica",
)
STANDARD_LIBRARY_ALONE = ("engine.types", "engine.errors", "engine.config", "engine.messages")

S3_LIBRARIES = {"boto3", "botocore", "urllib3"}

ENVIRONMENT_READERS = {"deployments.config"}
ENVIRONMENT_PASSED_ON = {
    "deployments.bench.__main__": "the environment of a measurement's own Ray",
    "deployments.replica.children": "the environment of core and loader",
    "deployments.quickstart.service": "the environment of `serve run`",
}
"""May copy the environment whole into a child's, `{**os.environ, ...}`, and look at nothing."""

MAX_FILE_LINES = 320
MAX_FUNCTION_LINES = 60
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm|home/[a-z]+)/", re.MULTILINE)

every_module = pytest.mark.parametrize("module", TREE.modules.values(), ids=lambda m: m.name)


@every_module
def test_imports_follow_the_table(module: Module) -> None:
    package = module.name.split(".")[0]
    for target in module.imports:
        top = target.split(".")[0]
        if top in PACKAGES:
            allowed = OURS_ALLOWED[package]
            assert any(target == a or target.startswith(f"{a}.") for a in allowed), target
        else:
            assert top not in FOREIGN_FORBIDDEN[package], target
        if package == "router" and top == "ray":
            assert module.name in RAY_IN_ROUTER, target


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ALONE)
def test_values_need_the_standard_library_alone(name: str) -> None:
    assert TREE.foreign_closure(name) <= sys.stdlib_module_names


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_no_torch_in_what_ingress_router_and_replica_import(name: str) -> None:
    assert not TREE.foreign_closure(name) & {"torch", "triton", "transformers", "peft"}


def test_ingress_router_and_replica_run_without_torch() -> None:
    imports = "; ".join(f"import {name}" for name in WITHOUT_TORCH)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr or "torch was loaded"


def test_step_loop_runs_on_a_bare_gpu_machine() -> None:
    for root in STEP_LOOP:
        for module in TREE.package(root):
            needs = TREE.foreign_closure(module.name) - sys.stdlib_module_names
            assert needs <= STEP_LOOP_NEEDS, module.name


def test_only_the_s3_store_needs_boto3() -> None:
    """And nobody imports it but where a store's url asks for it."""
    users = {m.name for m in TREE.modules.values() if S3_LIBRARIES & _tops(m.imports)}
    assert all(name.startswith("engine.adapters.s3_") for name in users), users
    for root in ("engine.loader", *WITHOUT_TORCH):
        assert not TREE.foreign_closure(root) & S3_LIBRARIES, root


def _tops(names: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_package_roots_are_empty() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").read_text() == "", package


def test_kernels_is_ours() -> None:
    """A distribution of that name exists, and transformers probes for some of its versions."""
    spec = importlib.util.find_spec("kernels")
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert not version.startswith("0.18.")
    assert not re.search(r"^kernels==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {module.name for module in TREE.modules.values() if module.path.name == "__init__.py"}
    assert found <= set(listed)
    for name in set(listed) - found:  # folders of data
        folder = ROOT / name.replace(".", "/")
        assert any(folder.iterdir()) and not any(folder.glob("*.py")), name


def test_the_lock_pins_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    pinned = {_normal(pin.split("==")[0]) for pin in pins}
    for requirement in asked:
        assert _normal(re.split(r"[\[<>=!~;]", requirement)[0]) in pinned, requirement


@every_module
def test_environment_is_read_in_one_place(module: Module) -> None:
    if module.name in ENVIRONMENT_READERS:
        return
    uses = [node for node in ast.walk(module.tree) if _touches_environment(node)]
    if module.name in ENVIRONMENT_PASSED_ON:
        passed_on = [id(value) for value in _unpacked_into_dicts(module.tree)]
        uses = [node for node in uses if id(node) not in passed_on]
    assert not uses, f"line {uses[0].lineno} of {module.path.name} reads the environment"


@every_module
def test_files_and_functions_stay_short(module: Module) -> None:
    num_lines = module.path.read_text().count("\n")
    assert num_lines <= MAX_FILE_LINES
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name}: {lines} lines"


@every_module
def test_modules_say_what_they_are(module: Module) -> None:
    assert module.name.rpartition(".")[2] not in NAMES_THAT_SAY_NOTHING
    if module.path.name != "__init__.py":
        assert ast.get_docstring(module.tree), "no docstring"


def test_no_path_of_a_machine_in_tracked_files() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.suffix == ".safetensors" or not path.is_file():
            continue
        found = MACHINE_PATH.search(path.read_text())
        assert found is None, f"{name}: {found and found.group()}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _touches_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv" | "environb"):
            return True
        case ast.ImportFrom(module="os", names=names):
            return any(alias.name in ("environ", "getenv") for alias in names)
    return False


def _unpacked_into_dicts(tree: ast.AST) -> list[ast.AST]:
    """Values `x` of `{**x, ...}` anywhere in `tree`."""
    return [
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    ]
