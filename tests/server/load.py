"""By hand: many small requests at once: ``python tests/server/load.py http://127.0.0.1:8000 [--clients N]``.

Each client asks in turn, on one connection: mostly for rules; one request in ten optimises a small graph (the answer
is cached after the first, and 429 once the quota is used up). Prints counts by status, latencies, and the server's
memory before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import urllib.request
from collections import Counter, defaultdict
from urllib.parse import urlsplit

TINY = json.dumps(
    {"format": "superopt.graph", "version": 1, "opset": {"": 21},
     "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}],
     "nodes": [{"op": "Relu", "inputs": ["x"], "outputs": ["y"]}], "outputs": [{"name": "y"}]}
).encode()  # fmt: skip
PATHS = ("/v1/rules", "/v1/rules?operator=Conv", "/v1/limits", "/livez")


def message(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    if body:
        head += "Content-Type: application/vnd.superopt.graph+json\r\n"
    return head.encode() + b"\r\n" + body


async def client(host: str, port: int, until: float, chance: random.Random, seen: dict[str, list[float]],
                 statuses: Counter[str]) -> None:  # fmt: skip
    reader, writer = await asyncio.open_connection(host, port)
    while time.monotonic() < until:
        if chance.random() < 0.1:
            name, sent = "POST /v1/optimize", message("POST", "/v1/optimize?time_limit=1", TINY)
        else:
            name = chance.choice(PATHS)
            sent = message("GET", name)
        began = time.monotonic()
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
        await reader.readexactly(length)
        seen[name].append(time.monotonic() - began)
        statuses[f"{name.split('?')[0]} {head[9:12]}"] += 1
    writer.close()


def memory(base: str) -> float:
    text = urllib.request.urlopen(f"{base}/metrics").read().decode()
    return next(float(x.split()[1]) for x in text.splitlines() if x.startswith("process_resident")) / 2**20


async def run(base: str, clients: int, seconds: float) -> None:
    place = urlsplit(base)
    seen: dict[str, list[float]] = defaultdict(list)
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds
    chance = random.Random(0)
    await asyncio.gather(
        *(client(place.hostname or "", place.port or 80, until, chance, seen, statuses) for _ in range(clients))
    )
    for name, times in sorted(seen.items()):
        times.sort()
        quantiles = " ".join(f"p{q} {1000 * times[int(q / 100 * (len(times) - 1))]:6.1f} ms" for q in (50, 95, 99))
        print(f"{name:28} {len(times):7d}  {quantiles}")
    print(dict(statuses))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    before = memory(given.base)
    asyncio.run(run(given.base, given.clients, given.seconds))
    print(f"memory before {before:.1f} MiB, after {memory(given.base):.1f} MiB")


if __name__ == "__main__":
    main()
