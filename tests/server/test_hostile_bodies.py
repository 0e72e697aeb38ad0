"""Every hostile file of tests/hostile, sent to a live service: a 4xx problem each, and nothing left on disk."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from service_testing import GRAPH, Live, files_below, tiny, until

HOSTILE = Path(__file__).resolve().parents[1] / "hostile"
NOT_BODIES = {"directory", "FIFO", "device", "missing"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOSTILE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bodies(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Media type and bytes of each."""
    onnx, texts = load("test_hostile_files"), load("test_hostile_json")
    found: dict[str, tuple[str, bytes]] = {}
    for number, (name, (make, _)) in enumerate(onnx.ONNX.items()):
        if name not in NOT_BODIES:
            path = folder / str(number) / "models" / "bad.onnx"
            path.parent.mkdir(parents=True)
            make(path)
            found[name] = ("application/octet-stream", path.read_bytes())
    found |= {name: (GRAPH, data) for name, (data, _) in texts.TEXTS.items()}
    for pointer, (path, value, _) in texts.EDITS.items():
        document = copy.deepcopy(texts.TINY)
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        found[pointer] = (GRAPH, json.dumps(document).encode())
    return found


def test_each_is_refused_and_nothing_stays(live: Live, tmp_path: Path) -> None:
    sent = {name: live.post(body, media) for name, (media, body) in bodies(tmp_path).items()}
    jobs = {name: answer.headers["location"] for name, answer in sent.items() if answer.status_code == 202}
    refused = {name: answer for name, answer in sent.items() if name not in jobs}
    for name, place in jobs.items():
        until(lambda place=place: live.http.get(place).json()["state"] in ("failed", "succeeded"), 120)
        refused[name] = live.http.get(f"{place}/result")
    assert len(refused) > 80
    for name, answer in refused.items():
        assert 400 <= answer.status_code < 500, (name, answer.text)
        assert answer.headers["content-type"] == "application/problem+json", name
        found = answer.json()
        assert found["detail"].isprintable(), name
        assert str(live.settings.data) not in found["detail"], name
    for pointer in ("/nodes/0/inputs/1", "/weights/2/raw"):
        assert refused[pointer].json()["errors"][0]["pointer"] == pointer
    assert refused["missing inputs"].json()["errors"][0]["node"] == "y"
    inputs = {f for f in files_below(live.settings.data) if f.startswith("incoming")}
    assert not inputs
    assert live.http.post("/v1/optimize", content=tiny("alive"), headers={"Content-Type": GRAPH}).status_code == 200
    store_counts = live.http.get("/metrics").text
    assert 'superopt_jobs{state="running"} 0' in store_counts


def test_blobs_of_failed_jobs_are_swept(live: Live) -> None:
    answer = live.post(b'{"format": "nothing", "mark": "swept"}')
    until(lambda: live.state(answer) == "failed", 60)
    digest = hashlib.sha256(b'{"format": "nothing", "mark": "swept"}').hexdigest()
    until(lambda: not [f for f in files_below(live.settings.data) if digest in f], 20)
