"""Measurements of everything around the model, on the fake device. Prints JSON.

python -m deployments.bench isolation
python -m deployments.bench streams
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deployments.bench import isolation
from deployments.platform.ray_settings import RAY_SETTINGS

MAIN = "from deployments.bench.streams import main; main()"
RESULT = "RESULT "  # begins its line: Ray writes to the same output


def main() -> None:
    parser = argparse.ArgumentParser(prog="deployments.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("isolation", help="what disturbs the core's steps")
    part.add_argument("--streams", type=int, default=64)
    part.add_argument("--loads", type=int, default=50)
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--realtime", action="store_true", help="core ahead of all (needs root)")
    part = commands.add_parser(
        "streams", help="whether tokens arrive in time, through Ray and HTTP"
    )
    part.add_argument("--streams", type=int, default=128)
    part.add_argument("--tokens", type=int, default=200)
    part.add_argument("--rate", type=float, default=20.0)
    part.add_argument("--interval", type=float, default=0.05, help="stream_interval_s")
    part.add_argument("--plain", action="store_true", help="without platform.ray_settings")
    print(json.dumps(_measure(parser.parse_args()), indent=2))


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.command == "streams":
        return _streams(args)
    setting = isolation.Setting(
        args.streams, args.loads, rounds=args.rounds, realtime=args.realtime
    )
    return asyncio.run(isolation.measure(setting))


def _streams(args: argparse.Namespace) -> dict[str, Any]:
    """In a process that Ray's settings are in the environment of, with a Ray of its own."""
    setting = {
        "num_streams": args.streams,
        "num_tokens": args.tokens,
        "rate": args.rate,
        "stream_interval_s": args.interval,
    }
    environment = {
        **os.environ,
        **({} if args.plain else RAY_SETTINGS),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_ADDRESS": "",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-c", MAIN, json.dumps(setting)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    return {"ray_settings": not args.plain, **json.loads(line.removeprefix(RESULT))}


if __name__ == "__main__":
    main()
