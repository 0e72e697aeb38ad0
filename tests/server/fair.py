"""By hand: two owners, 40 jobs: ``python tests/server/fair.py [--jobs 40] [--workers 2] [--postgres]``.

One owner submits half of the jobs, then the other the rest. Prints how long the jobs of each waited, and fails where
the means differ by more than a factor of 2, or a job did not succeed. At most ten minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from service_testing import GRAPH, free_port, postgres, start, stop, tiny

from superopt.server.http.keys import ApiKeyStore
from superopt.server.jobs.database import JobDatabase
from superopt.server.settings import ServiceLimits, ServiceSettings

FACTOR = 2.0
MOST_SECONDS = 600.0


def waits(http: httpx.Client, headers: dict[str, str]) -> list[float] | None:
    """Seconds that each job of an owner waited; none while one has not ended."""
    found = http.get("/v1/jobs", params={"limit": 200}, headers=headers).json()["jobs"]
    if any(job["state"] in ("queued", "running") for job in found):
        return None
    assert all(job["state"] == "succeeded" for job in found), found
    return [
        (datetime.fromisoformat(job["started"]) - datetime.fromisoformat(job["created"])).total_seconds()
        for job in found
    ]  # fmt: skip


def run(settings: ServiceSettings, count: int) -> bool:
    database = JobDatabase(settings.url)
    database.migrate()
    owners = {name: {"Authorization": f"Bearer {ApiKeyStore(database).add(name)}"} for name in ("first", "second")}
    database.close()
    live = start(settings)
    try:
        for name, headers in owners.items():
            for n in range(count // 2):
                params = {"target": "profile:cpu-epyc-2core"}
                sent = {"Content-Type": GRAPH, **headers}
                live.http.post("/v1/jobs", content=tiny(f"{name} {n}"), headers=sent, params=params).raise_for_status()
        deadline = time.monotonic() + MOST_SECONDS
        while None in (found := {name: waits(live.http, headers) for name, headers in owners.items()}).values():
            assert time.monotonic() < deadline, "not all jobs ended in ten minutes"
            time.sleep(1.0)
    finally:
        stop(live)
    means = {name: statistics.mean(seconds or [0.0]) for name, seconds in found.items()}
    for name, seconds in found.items():
        most = max(seconds or [0.0])
        print(f"{name:7} {len(seconds or ())} jobs waited {means[name]:6.1f} s in the mean, {most:6.1f} s at most")
    ratio = max(means.values()) / max(min(means.values()), 1e-9)
    print(f"a factor of {ratio:.2f}; {FACTOR:g} is allowed")
    return ratio <= FACTOR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own instead of SQLite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, postgres() if given.postgres else nullcontext() as url:
        settings = ServiceSettings(
            data=Path(folder), port=free_port(), workers=given.workers, database=url, log_level="warning",
            limits=ServiceLimits(search_seconds=1.0),
        )  # fmt: skip
        return 0 if run(settings, given.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
