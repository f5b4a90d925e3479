"""Measurements of everything around the model, on the fake device. Prints JSON.

python -m deployments.bench isolation
python -m deployments.bench streams
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from deployments.bench import isolation, streams


def main() -> None:
    parser = argparse.ArgumentParser(prog="deployments.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("isolation", help="what disturbs the core's steps")
    part.add_argument("--streams", type=int, default=64)
    part.add_argument("--loads", type=int, default=50)
    part.add_argument("--rounds", type=int, default=3)
    part = commands.add_parser(
        "streams", help="whether tokens arrive in time, through Ray and HTTP"
    )
    part.add_argument("--streams", type=int, default=128)
    part.add_argument("--tokens", type=int, default=200)
    part.add_argument("--rate", type=float, default=20.0)
    part.add_argument("--interval", type=float, default=0.05, help="stream_interval_s")
    print(json.dumps(_measure(parser.parse_args()), indent=2))


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.command == "streams":
        return streams.measure(
            streams.Setting(args.streams, args.tokens, args.rate, stream_interval_s=args.interval)
        )
    setting = isolation.Setting(args.streams, args.loads, rounds=args.rounds)
    return asyncio.run(isolation.measure(setting))


if __name__ == "__main__":
    main()
