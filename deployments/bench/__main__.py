"""Measurements of everything around the model, on the fake device. Prints JSON.

python -m deployments.bench isolation
python -m deployments.bench streams
"""

from __future__ import annotations

import argparse
import asyncio
import json

from deployments.bench import isolation


def main() -> None:
    parser = argparse.ArgumentParser(prog="deployments.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("isolation", help="what disturbs the core's steps")
    part.add_argument("--streams", type=int, default=64)
    part.add_argument("--loads", type=int, default=50)
    part.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    setting = isolation.Setting(args.streams, args.loads, rounds=args.rounds)
    print(json.dumps(asyncio.run(isolation.measure(setting)), indent=2))


if __name__ == "__main__":
    main()
