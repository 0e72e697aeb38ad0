"""A service that ends answers those who wait: their jobs go on when it is back."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
from service_testing import GRAPH, free_port, start, tiny, until

from superopt.server.settings import ServiceSettings


def follow(url: str, begun: Event) -> str:
    """All of a stream; ``begun`` is set once there is some."""
    text = ""
    with httpx.stream("GET", url, timeout=60) as answer:
        for chunk in answer.iter_text():
            text += chunk
            begun.set()
    return text


def test_who_waits_is_told_where_the_job_is(tmp_path: Path) -> None:
    """Without workers both jobs stay queued; a request that waits and a stream would go on for minutes."""
    live = start(ServiceSettings(data=tmp_path, port=free_port(), workers=0))
    headers = {"Content-Type": GRAPH}
    job = live.http.post("/v1/jobs", content=tiny("followed"), headers=headers).json()["links"]["self"]
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(httpx.post, f"{live.url}/v1/optimize", content=tiny("waits"), headers=headers, timeout=60)
        stream = pool.submit(follow, f"{live.url}{job}/events", begun := Event())
        until(lambda: len(live.http.get("/v1/jobs").json()["jobs"]) == 2)
        assert begun.wait(60)
        live.http.close()
        live.process.send_signal(signal.SIGTERM)
        answer, events = waits.result(60), stream.result(60)
    assert live.process.wait(60) in (0, -signal.SIGTERM)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert answer.headers["location"] == answer.json()["links"]["self"]
    assert "event: queued" in events
    assert "event: finished" not in events
