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
NAMED = {
    "/nodes/0/inputs/1",
    "/weights/2/raw",
    "missing inputs",
}  # of the others every second is sent: all are read there


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
    found = bodies(tmp_path)
    chosen = [name for number, name in enumerate(found) if number % 2 == 0 or name in NAMED]
    sent = {name: live.post(found[name][1], found[name][0]) for name in chosen}
    jobs = {name: answer.headers["location"] for name, answer in sent.items() if answer.status_code == 202}
    refused = {name: answer for name, answer in sent.items() if name not in jobs}
    for name, place in jobs.items():
        until(lambda place=place: live.http.get(place).json()["state"] in ("failed", "succeeded"), 120)
        refused[name] = live.http.get(f"{place}/result")
    assert len(refused) > 45
    for name, answer in refused.items():
        assert 400 <= answer.status_code < 500, (name, answer.text)
        assert answer.headers["content-type"] == "application/problem+json", name
        detail = answer.json()["detail"]
        assert detail.isprintable(), name
        assert str(live.settings.data) not in detail, name
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


def test_models_that_no_machine_could_run_are_refused_and_the_others_come_back(live: Live) -> None:
    """A bomb that is absurd is a resource limit; one that a large machine could run is carried through unchanged."""
    bombs = load("test_hostile_runs").BOMBS
    sent = {
        name: live.post(model.SerializeToString(), "application/octet-stream") for name, (model, _) in bombs.items()
    }
    refused = 0
    for name, answer in sent.items():
        place = answer.headers["location"]
        until(lambda place=place: live.http.get(place).json()["state"] in ("failed", "succeeded"), 120)
        result = live.http.get(f"{place}/result")
        if result.status_code == 200:
            assert live.http.get(place).json()["status"] == "unchanged", name
            continue
        refused += 1
        assert (result.status_code, result.json()["type"]) == (422, "urn:superopt:problem:resource-limit"), name
        assert str(live.settings.data) not in result.text, name
    assert refused >= len(bombs) - 2


def safetensors(header: bytes, rest: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + rest


def test_hostile_weights_beside_a_graph(live: Live) -> None:
    document = json.loads(tiny("weights"))
    document["weights"][0] = {"name": "w", "dtype": "float32", "shape": [8], "file": "weights.safetensors"}
    many = ",".join(f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(12_000))
    hostile = {
        "empty": b"", "garbage": b"hello", "length bomb": (1 << 62).to_bytes(8, "little") + b"{}",
        "a million empty entries, as many as fit": safetensors(b"{" + many.encode() + b"}"),
        "beyond the file": safetensors(b'{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}', bytes(8)),
        "negative": safetensors(b'{"w":{"dtype":"F32","shape":[8],"data_offsets":[-32,0]}}', bytes(32)),
        "not its shape": safetensors(b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}', bytes(36)),
        "deep": safetensors(b'{"w":' * 9000), "pickle": b"\x80\x04\x95" + bytes(64),
    }  # fmt: skip
    for name, weights in hostile.items():
        parts = {"graph": ("g.json", json.dumps(document)), "weights.safetensors": ("w", weights)}
        answer = live.http.post("/v1/jobs", files=parts, headers={"Prefer": "wait=20"})
        if answer.status_code in (200, 202):
            answer = live.http.get(f"{answer.headers['location']}/result")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:superopt:problem:invalid-model"), name


def test_hostile_names_come_back_and_pages_show_them_as_names(live: Live) -> None:
    for texts in (("<script>alert(1)</script>", "\x1b[31mred", "a\0b"), ("x" * 20_000, "line\nbreak")):
        document = json.loads(tiny("".join(texts)))
        for node, text in zip(document["nodes"], texts, strict=False):
            node["name"] = text
        answer = live.http.post(
            "/v1/jobs", content=json.dumps(document), headers={"Content-Type": GRAPH, "Prefer": "wait=30"}
        )
        job = answer.json()
        assert job["state"] == "succeeded", job
        page = live.http.get(job["links"]["page"]).text
        assert "<script>alert" not in page
        assert not set("\x1b\0") & set(page)
        assert live.http.get(job["links"]["comparison"]).status_code == 200
