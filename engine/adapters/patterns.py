"""Regular expressions that a tenant wrote, evaluated within bounds.

Adapter configs select modules by Python regular expressions, and one like ``(a+)+$`` runs for ever
while it holds the GIL. So anything but a plain name is evaluated in a short-lived child, this very
file, under limits on its processor time and memory. Plain names are compared here.

Standard library only, and no import of ours: the child runs this file alone.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

MAX_PATTERNS = 20_000
MAX_PATTERN_CHARS = 4096
MAX_CPU_S = 2
MAX_CHILD_BYTES = 1 << 30
MAX_WALL_S = 60.0
PLAIN = re.compile(r"[A-Za-z0-9_.]*")


class PatternError(ValueError):
    """A pattern is no regular expression, or takes too long. Says which."""


@dataclass(frozen=True, slots=True)
class Search:
    """Patterns to try on every name, in order; the first that matches counts.

    before, after  the regular expression around each pattern, which is matched from the start
    whole          the pattern, with nothing around it, must match the whole name
    """

    patterns: tuple[str, ...]
    before: str = ""
    after: str = ""
    whole: bool = False


Found = tuple[int, str | None] | None
"""The index of the pattern that matched, and its group `idx` where the search has one."""

SUFFIX = (r"(.*\.)?(", r")$")
"""Around a pattern that must match the whole name, or all behind one of its dots."""


def search(
    searches: Sequence[Search], names: Sequence[str], *, max_cpu_s: int = MAX_CPU_S
) -> list[list[Found]]:
    """For each search, what each name matched. Raises PatternError."""
    patterns = [p for s in searches for p in s.patterns]
    if len(patterns) > MAX_PATTERNS:
        raise PatternError(f"there are {len(patterns)} patterns, more than {MAX_PATTERNS}")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternError(f"a pattern has {len(pattern)} characters")
    answers: list[list[Found] | None] = [
        _plain(s, names) if (s.before, s.after) == SUFFIX and _all_plain(s) else None
        for s in searches
    ]
    hard = [s for s, answer in zip(searches, answers, strict=True) if answer is None]
    found = iter(_in_child(hard, names, max_cpu_s) if any(s.patterns for s in hard) else [])
    nothing: list[Found] = [None] * len(names)
    return [answer if answer is not None else next(found, nothing) for answer in answers]


def _all_plain(search: Search) -> bool:
    return all(PLAIN.fullmatch(p) for p in search.patterns)


def _plain(search: Search, names: Sequence[str]) -> list[Found]:
    """What the regular expressions would say: a dot stands for any character."""
    found: list[Found] = []
    for name in names:
        hits = (i for i, pattern in enumerate(search.patterns) if _ends_with(name, pattern))
        first = next(hits, None)
        found.append(None if first is None else (first, None))
    return found


def _ends_with(name: str, pattern: str) -> bool:
    start = len(name) - len(pattern)
    if start < 0 or (start > 0 and name[start - 1] != "."):
        return False
    return all(p in (".", c) for p, c in zip(pattern, name[start:], strict=True))


def _in_child(searches: list[Search], names: Sequence[str], max_cpu_s: int) -> list[list[Found]]:
    task = {"searches": [asdict(s) for s in searches], "names": list(names), "cpu_s": max_cpu_s}
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", __file__],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=MAX_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PatternError(f"a pattern took longer than {MAX_WALL_S:g} s") from error
    try:
        # The answer decides, not the exit status: a parent that ignores SIGCHLD never learns it.
        answer = json.loads(child.stdout)
    except ValueError as error:
        raise PatternError(f"a pattern took more than {max_cpu_s} s or too much memory") from error
    if "error" in answer:
        raise PatternError(answer["error"])
    return [[None if hit is None else (hit[0], hit[1]) for hit in hits] for hits in answer["found"]]


def _evaluate(search: Search, names: Sequence[str]) -> list[Found]:
    compiled = []
    for pattern in search.patterns:
        try:
            compiled.append(re.compile(search.before + pattern + search.after))
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"{pattern!r} is not a regular expression ({error})") from error
    found: list[Found] = []
    for name in names:
        matches = (
            (i, pattern.fullmatch(name) if search.whole else pattern.match(name))
            for i, pattern in enumerate(compiled)
        )
        first = next(((i, match) for i, match in matches if match), None)
        found.append(None if first is None else (first[0], first[1].groupdict().get("idx")))
    return found


def _main() -> None:
    """The child: a task on standard input, its answer on standard output."""
    task = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (task["cpu_s"], task["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHILD_BYTES, MAX_CHILD_BYTES))
    try:
        found = [_evaluate(Search(**s), task["names"]) for s in task["searches"]]
        json.dump({"found": found}, sys.stdout)
    except PatternError as error:
        json.dump({"error": str(error)}, sys.stdout)


if __name__ == "__main__":
    _main()
