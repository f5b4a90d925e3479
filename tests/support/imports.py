"""Which module of ours imports what, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("kernels", "engine", "router", "deployments", "loadgen")


@dataclass(frozen=True)
class Module:
    """One source file. `imports` are dotted names; `eager` are those that run on import."""

    name: str
    path: Path
    tree: ast.Module
    imports: frozenset[str]
    eager: frozenset[str]


class SourceTree:
    """Every module of the product's packages below `root`."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                module = _read(path, root)
                self.modules[module.name] = module

    def package(self, name: str) -> Iterator[Module]:
        """The package itself and every module below it."""
        for module in self.modules.values():
            if module.name == name or module.name.startswith(f"{name}."):
                yield module

    def foreign_closure(self, name: str) -> set[str]:
        """Top-level names outside our packages that importing `name` brings in, through ours."""
        foreign: set[str] = set()
        seen: set[str] = set()
        todo = [name]
        while todo:
            current = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            todo += [parent for parent in _parents(current) if parent in self.modules]
            for target in self.modules[current].eager:
                if target.split(".")[0] not in PACKAGES:
                    foreign.add(target.split(".")[0])
                elif (ours := self.resolve(target)) is not None:
                    todo.append(ours)
        return foreign

    def resolve(self, target: str) -> str | None:
        """The module that the dotted name `target` is, or is an attribute of."""
        if target in self.modules:
            return target
        parent = target.rpartition(".")[0]
        return parent if parent in self.modules else None


def _read(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(path.read_text(), filename=str(path))
    eager = frozenset(_imported(tree, name, path, lazy=False))
    every = frozenset(_imported(tree, name, path, lazy=True))
    return Module(name, path, tree, every, eager)


def _imported(node: ast.AST, name: str, path: Path, *, lazy: bool) -> Iterator[str]:
    """Dotted names imported below `node`; `lazy` includes those inside functions."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(name, path, module, level)
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if not lazy:
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                for statement in orelse:
                    yield from _imported(statement, name, path, lazy=lazy)
            case _:
                yield from _imported(child, name, path, lazy=lazy)


def _absolute(name: str, path: Path, module: str | None, level: int) -> str:
    if level == 0:
        return module or ""
    parts = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    parts = parts[: len(parts) - (level - 1)]
    return ".".join([*parts, module] if module else parts)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
