"""By hand: many small requests at once: ``python tests/server/load.py http://127.0.0.1:8000 [--clients N]``.

Each client asks in turn, on one connection: mostly for rules; one request in ten optimizes a small graph (the answer
is cached after the first, and 429 once the quota is used up). Prints counts by status, latencies, and the server's
memory every ten seconds. Fails where an answer is neither 200 nor 429, or the p99 of GET /v1/rules is over 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
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


async def memory(host: str, port: int) -> float:
    """Resident MiB of the server."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(message("GET", "/metrics").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    text = (await reader.read()).decode()
    writer.close()
    return next(float(x.split()[1]) for x in text.splitlines() if x.startswith("process_resident")) / 2**20


async def watch(host: str, port: int, until: float, found: list[float]) -> None:
    while time.monotonic() < until:
        found.append(await memory(host, port))
        await asyncio.sleep(min(10.0, max(0.1, until - time.monotonic())))
    found.append(await memory(host, port))


async def run(base: str, clients: int, seconds: float) -> bool:
    place = urlsplit(base)
    host, port = place.hostname or "", place.port or 80
    seen: dict[str, list[float]] = defaultdict(list)
    statuses: Counter[str] = Counter()
    resident: list[float] = []
    until = time.monotonic() + seconds
    chance = random.Random(0)
    await asyncio.gather(
        watch(host, port, until, resident), *(client(host, port, until, chance, seen, statuses) for _ in range(clients))
    )
    slowest = {name: _quantile(times, 99) for name, times in seen.items()}
    for name, times in sorted(seen.items()):
        quantiles = " ".join(f"p{q} {1000 * _quantile(times, q):6.1f} ms" for q in (50, 95, 99))
        print(f"{name:28} {len(times):7d}  {quantiles}")
    print(dict(statuses))
    print("resident MiB, every 10 s:", " ".join(f"{m:.1f}" for m in resident))
    return all(name.endswith((" 200", " 429")) for name in statuses) and slowest.get("/v1/rules", 9.0) <= 0.2


def _quantile(times: list[float], q: int) -> float:
    return sorted(times)[int(q / 100 * (len(times) - 1))]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    return 0 if asyncio.run(run(given.base, given.clients, given.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
