"""Every case from the field has a test that names it: `grep -r A-RSLORA tests` finds them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LETTERS = {
    "A-NOOP-PREFIX": "abcd",
    "A-EMPTY-ZERO3": "abcdef",
    "A-MODULES-TO-SAVE": "abcde",
}
"""Of the cases whose inputs are lettered."""
CASES = (
    "A-BIAS",
    "A-EMPTY-ZERO3",
    "A-FAN-IN",
    "A-FUSED-SPLIT",
    "A-MODULES-TO-SAVE",
    "A-NEW-FIELDS",
    "A-NONFINITE",
    "A-NOOP-PREFIX",
    "A-PATTERN-SEMANTICS",
    "A-RSLORA",
    "A-TARGET-FORMS",
    "A-TIED-HEAD",
    "A-TRAVERSAL",
    "B-COLD-STALL",
    "B-SALT-COLLIDE",
    "B-SEED-MIX",
    "B-SLOT-STALE",
    "B-STARVE",
    "C-CONTROLLER-BLOCK",
    "C-HOT-SPOT",
    "C-S3-ERRORS",
    "C-VERSION-LEAK",
)


def docstrings() -> list[str]:
    """Of all tests, and of the files that they are in."""
    found = []
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        tree = ast.parse(path.read_text())
        tests = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test")
        ]
        found += [ast.get_docstring(node) or "" for node in tests]
    return found


DOCSTRINGS = docstrings()


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_named_by_a_test(case: str) -> None:
    named = [text for text in DOCSTRINGS if re.search(rf"\b{case}\b", text)]
    assert named, f"no test's docstring names {case}"
    told = {letter for text in named for letter in re.findall(r"\(([a-f])\)", text)}
    assert told >= set(LETTERS.get(case, "")), f"{case}: no test says which of these it is"
