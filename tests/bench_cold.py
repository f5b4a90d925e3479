"""`deployments.bench.cold` on a real S3 server behind a proxy that makes it slow. Prints JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

from deployments.bench import cold
from deployments.bench.isolation import Setting
from tests.support import s3_server
from tests.support.fault_proxy import Fault, proxy_before

SLOW = Fault(latency_s=0.1, bytes_per_s=1e6)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench_cold", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--loads", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    args = parser.parse_args()
    os.environ.update(s3_server.ENVIRONMENT)
    setting = Setting(args.streams, args.loads, rounds=args.rounds, phase_s=args.seconds)
    with s3_server.running() as server, proxy_before(server.endpoint) as proxy:
        proxy.add(SLOW)

        def place(objects: Path) -> str:
            store = server.store("bench")
            for path in objects.glob("adapters/**/*"):
                if path.is_file():
                    store.put(path.relative_to(objects).as_posix(), path)
            return server.url("bench", endpoint=proxy.endpoint)

        report = asyncio.run(cold.measure(setting, place))
        report["gets"] = proxy.num_gets()
    print(json.dumps({"store": {"latency_s": 0.1, "bytes_per_s": 1e6}, **report}, indent=2))


if __name__ == "__main__":
    main()
