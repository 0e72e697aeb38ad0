"""A real service with a real worker: results that are right, and what happens when processes die."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sampling import slow
from service_testing import GRAPH, Live, files_below, free_port, set_clock, start, stop, tiny, until

from superopt.client import Client
from superopt.formats import from_bytes, load
from superopt.runtime import reference
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.result_reuse import reusable
from superopt.server.jobs.store import JobStore
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.verifier.check.differential import check

ROOT = Path(__file__).resolve().parents[2]
ONNX = "application/octet-stream"
JSON = {"Content-Type": GRAPH}


def onnx_model() -> bytes:
    nodes = [helper.make_node("Relu", ["x"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "twice", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def events(live: Live, place: str, after: int = 0) -> list[tuple[int, str]]:
    """All that a stream sends until it ends: (id, kind)."""
    found, number = [], 0
    with live.http.stream("GET", f"{place}/events", headers={"Last-Event-ID": str(after)}) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("event: "):
                found.append((number, line[7:]))
    return found


def test_a_graph_comes_back_faster_and_equal(live: Live) -> None:
    sent = tiny("sync")
    answer = live.http.post("/v1/optimize", content=sent, headers=JSON)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == GRAPH
    assert check(from_bytes(sent), from_bytes(answer.content)).verdict == "passed"
    report = live.http.get(answer.headers["link"].split(">")[0][1:]).json()
    assert report["format"] == "superopt.report"
    assert answer.headers["superopt-status"] == report["status"]
    again = live.http.post("/v1/optimize", content=sent, headers={**JSON, "If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_onnx_in_and_either_form_out(live: Live) -> None:
    sent = onnx_model()
    answer = live.post(sent, ONNX)
    place = answer.headers["location"]
    assert live.http.get(place, headers={"Prefer": "wait=1"}).status_code == 200
    until(lambda: live.state(answer) == "succeeded", 60)
    result = live.http.get(f"{place}/result")
    assert result.headers["content-type"] == ONNX
    onnx.checker.check_model(onnx.load_from_string(result.content))
    as_json = live.http.get(f"{place}/result", headers={"Accept": f"text/plain, {GRAPH};q=0.5"})
    assert as_json.headers["content-type"] == GRAPH
    assert check(from_bytes(sent), from_bytes(as_json.content)).verdict == "passed"
    refused = live.http.get(f"{place}/result", headers={"Accept": "text/html"})
    assert (refused.status_code, refused.headers["content-type"]) == (406, "text/html; charset=utf-8")
    refused = live.http.get(f"{place}/result", headers={"Accept": "image/png"})
    assert (refused.status_code, refused.json()["type"]) == (406, "urn:superopt:problem:not-acceptable")
    page = live.http.get(f"/jobs/{place.rsplit('/', 1)[1]}").text
    assert "Is it safe?" in page
    assert live.http.get(f"/jobs/{place.rsplit('/', 1)[1]}/graph.onnx").content == result.content


def test_weights_come_along_as_safetensors(live: Live) -> None:
    document = json.loads(tiny("multipart"))
    document["weights"][0] = {"name": "w", "dtype": "float32", "shape": [8], "file": "weights.safetensors"}
    header = b'{"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(32)
    parts = {"graph": ("g.json", json.dumps(document)), "weights.safetensors": ("w", weights)}
    answer = live.http.post("/v1/optimize", files=parts)
    assert answer.status_code == 200, answer.text
    assert from_bytes(answer.content).outputs[0].name == "y"
    for location in ("../weights.safetensors", "/etc/passwd"):
        document["weights"][0]["file"] = location
        parts = {"graph": ("g.json", json.dumps(document)), "weights.safetensors": ("w", weights)}
        refused = live.http.post("/v1/optimize", files=parts)
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:superopt:problem:invalid-model")


def test_the_result_comes_with_its_weights_beside_it_and_can_be_sent_again(live: Live) -> None:
    document = json.loads(tiny("apart"))
    document["inputs"][0]["shape"] = [2, 4096]  # any form of it fits the limit, w expanded too
    document["weights"][0] = {"name": "w", "dtype": "float32", "shape": [4096], "values": [0.5] * 4096}
    sent = json.dumps(document).encode()
    answer = live.http.post("/v1/optimize", content=sent, headers={**JSON, "Accept": "multipart/form-data"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert b'name="weights.safetensors"' in answer.content
    again = live.http.post(
        "/v1/optimize", content=answer.content, headers={"Content-Type": answer.headers["content-type"]}
    )
    assert again.status_code == 200, again.text
    assert check(from_bytes(sent), from_bytes(again.content)).verdict == "passed"
    asked = {**JSON, "Accept": "multipart/mixed", "If-None-Match": answer.headers["etag"]}
    assert live.http.post("/v1/optimize", content=sent, headers=asked).status_code == 304
    short = live.http.post("/v1/optimize", content=tiny("short"), headers={**JSON, "Accept": "multipart/form-data"})
    assert short.content.count(b"Content-Disposition") == 1


def test_input_and_result_as_one_graph(live: Live) -> None:
    answer = live.http.post("/v1/optimize", content=tiny("union"), headers=JSON)
    job = live.http.get(answer.headers["link"].split(">")[0][1:].replace("/report", "")).json()
    found = live.http.get(job["links"]["comparison"]).json()
    assert found["format"] == "superopt.comparison"
    sides = [n["side"] for n in found["nodes"]]
    report = live.http.get(job["links"]["report"]).json()
    kinds = {n["op"]: n["side"] for n in found["nodes"] if n["op"] in ("input", "output")}
    assert kinds == {"input": "both", "output": "both"}
    assert sides.count("both") + sides.count("before") - 2 == report["nodes"]["before"]
    assert sides.count("both") + sides.count("after") - 2 == report["nodes"]["after"]
    assert all(0 <= a < len(sides) and 0 <= b < len(sides) for a, b, _ in found["edges"])
    assert "Cost by operator" in live.http.get(job["links"]["page"]).text


def test_a_failed_job_says_where(live: Live) -> None:
    document = json.loads(tiny("ghost"))
    document["nodes"][1]["inputs"] = ["ghost"]
    answer = live.http.post("/v1/jobs", content=json.dumps(document), headers={**JSON, "Prefer": "wait=20"})
    assert answer.status_code == 200
    assert answer.json()["state"] == "failed"
    error = live.http.get(f"{answer.headers['location']}/result")
    assert (error.status_code, error.headers["content-type"]) == (422, "application/problem+json")
    assert error.json()["errors"][0]["pointer"] == "/nodes/1/inputs/0"
    assert answer.json()["problem"] == error.json()


def test_events_resume(live: Live) -> None:
    place = live.post(tiny("events")).headers["location"]
    seen = events(live, place)
    assert [n for n, _ in seen] == list(range(1, len(seen) + 1))
    assert [k for _, k in seen][:2] == ["queued", "started"]
    assert seen[-1][1] == "finished"
    assert events(live, place, after=2) == seen[2:]
    assert live.http.get(f"{place}/events", headers={"Last-Event-ID": str(len(seen))}).status_code == 204


def test_a_slow_body_is_not_waited_for(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.settings.port)) as connection:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: {GRAPH}\r\nContent-Length: 1000\r\n\r\n{{"
        connection.sendall(head.encode())
        connection.settimeout(10)
        answer = connection.recv(4096)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"body-timeout" in answer or b"problem+json" in answer
    assert not [f for f in files_below(live.settings.data) if f.startswith("incoming")]


def model(name: str) -> bytes:
    return (ROOT / "corpus" / "tiny" / f"{name}.json").read_bytes()


def running(live: Live, answer: httpx.Response) -> bool:
    return live.state(answer) == "running"


def test_a_search_that_was_cut_short_answers_for_nobody_else(live: Live) -> None:
    sent = model("lora")
    first = live.post(sent, time_limit=0.1)
    until(lambda: live.succeeded(first), 180)
    assert live.http.get(first.headers["location"]).json()["stopped"] == "time"
    again = live.post(sent, time_limit=0.1)
    assert (again.status_code, again.json()["cached"]) == (202, False)
    until(lambda: live.succeeded(again), 180)
    assert live.http.get(again.headers["location"]).json()["cached"] is False
    on = live.http.post(f"{first.headers['location']}/continue", params={"time_limit": 120})
    assert on.status_code == 202
    until(lambda: live.succeeded(on), 240)
    done = live.http.get(on.headers["location"]).json()
    assert done["stopped"] not in ("time", "interrupted")
    assert "continue" not in done["links"]
    assert live.http.post(f"{on.headers['location']}/continue").status_code == 409
    for way in (first, on):
        report = live.http.get(f"{way.headers['location']}/report").json()
        assert report["roofline"]["flops_per_second"] > 0  # the processor's, however little time the job had
    endings = ("saturated", "nodes", "memory", "time", "interrupted")
    assert [reusable({"stopped": ending}) for ending in endings] == [True, True, True, False, False]


def test_cancel_ends_the_child(live: Live) -> None:
    answer = live.post(model("nasnet_a"), time_limit=300)
    until(lambda: running(live, answer))
    began = time.monotonic()
    assert live.http.delete(answer.headers["location"]).status_code == 200
    until(lambda: live.state(answer) == "cancelled", 10)
    assert time.monotonic() - began < 10
    until(lambda: not list((live.settings.data / "work").iterdir()), 10)


@pytest.mark.parametrize("step", [pytest.param(-7200.0, id="clock back"), slow(7200.0, id="clock forward")])
def test_a_killed_worker_loses_no_job(live: Live, step: float) -> None:
    sent = [tiny(f"kill {n} {step}") for n in range(2)]
    answers = [live.post(model("lora"), effort="quick", seed=7 + (step > 0)), *map(live.post, sent)]
    until(lambda: running(live, answers[0]))
    [worker] = live.worker_pids()
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    os.kill(worker, signal.SIGKILL)
    database = JobDatabase(live.settings.url)
    set_clock(database, step)
    database.close()
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 5)  # they die with it
    for answer in answers:
        until(lambda answer=answer: live.state(answer) == "succeeded", 60)
        kinds = [kind for _, kind in events(live, answer.headers["location"])]
        assert kinds.count("finished") == 1
    job = live.http.get(answers[0].headers["location"]).json()
    assert job["attempt"] == 2
    result = live.http.get(f"{answers[0].headers['location']}/result")
    assert from_bytes(result.content).outputs == from_bytes(model("lora")).outputs


def test_limits_of_memory_and_time_hold_and_nothing_stays(tmp_path: Path) -> None:
    limits = ServiceLimits(job_memory=3 << 30, job_seconds=2.0, last_words=1.0, grace=0.5, result=1 << 20)
    live = start(ServiceSettings(data=tmp_path, port=free_port(), lease=2.0, poll=0.1, limits=limits))
    try:
        late = live.post(model("nasnet_a"), time_limit=200)
        document = json.loads(tiny("huge"))
        document["weights"][0] = {"name": "w", "dtype": "float32", "shape": [1 << 30, 8], "random": {"seed": 1}}
        huge = live.post(json.dumps(document).encode())
        for answer in (late, huge):
            until(lambda answer=answer: live.state(answer) in ("failed", "succeeded"), 60)
            error = live.http.get(f"{answer.headers['location']}/result")
            assert error.status_code in (200, 406, 422), error.text
        until(lambda: not [f for f in files_below(tmp_path) if f.startswith("work")], 20)
    finally:
        stop(live)


def test_a_killed_server_takes_its_workers_along_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    settings = ServiceSettings(
        data=tmp_path, port=free_port(), lease=1.0, poll=0.1, limits=ServiceLimits(search_seconds=1.0)
    )
    live = start(settings)
    answers = [live.post(model("lora"), effort="quick"), live.post(tiny("after"))]
    until(lambda: running(live, answers[0]))
    workers = live.worker_pids()
    os.killpg(live.process.pid, signal.SIGKILL)
    live.process.wait()
    until(lambda: not any(_alive(pid) for pid in workers), 5)
    again = start(settings)
    try:
        for answer in answers:
            until(lambda answer=answer: again.state(answer) == "succeeded", 60)
    finally:
        stop(again)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_is_asked_to_end_gives_its_jobs_back(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path, port=free_port(), poll=0.1)
    live = start(settings)
    answer = live.post(model("nasnet_a"), time_limit=300)
    until(lambda: running(live, answer))
    stop(live)
    assert live.process.returncode == 0
    store = JobStore(JobDatabase(settings.url), settings.limits)
    assert store.counts() == {"queued": 1}
    assert not list((tmp_path / "work").iterdir())


def test_ctrl_c_ends_serve_and_all_that_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "superopt.cli", "serve", "--data", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        url = re.fullmatch(rb"superopt serves (http://127\.0\.0\.1:\d+) with 1 worker.*\n", said)
        assert url, said
        assert httpx.get(f"{url[1].decode()}/readyz").status_code == 200
        until(lambda: _below(process.pid))
        below = _below(process.pid)
        os.kill(process.pid, signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, rest) == (130, b"")
    assert not any(map(_alive, below))


def _below(pid: int) -> list[int]:
    """A process's children and theirs, through all its threads."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
            children = list(map(int, (task / "children").read_text().split()))
            found += children
            waiting += children
    return found


def test_serve_says_why_it_cannot_listen(tmp_path: Path) -> None:
    from superopt.ir.errors import UsageError
    from superopt.server import serve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
            serve(ServiceSettings(data=tmp_path, port=port))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        serve(ServiceSettings(data=tmp_path / "file" / "below"))


def test_serve_refuses_strangers_without_a_key(tmp_path: Path) -> None:
    from superopt.ir.errors import UsageError
    from superopt.server import serve

    with pytest.raises(UsageError, match="without an API key"):
        serve(ServiceSettings(data=tmp_path, host="0.0.0.0"))
    with pytest.raises(UsageError, match="database"):
        serve(ServiceSettings(data=tmp_path, database="mysql://x"))


def test_without_the_extra_serve_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from superopt import server
    from superopt.ir.errors import UsageError

    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'superopt\[server\]'"):
        server.serve(ServiceSettings(data=tmp_path))


def test_every_frame_of_a_derivation_is_a_model_that_computes_the_same(live: Live, tmp_path: Path) -> None:
    sent = model("lora")
    answer = live.post(sent, time_limit=30, target="profile:cpu-epyc-2core")
    until(lambda: live.succeeded(answer), 180)
    job = live.http.get(answer.headers["location"]).json()
    derivation = live.http.get(job["links"]["report"]).json()["derivation"]
    whole = derivation["before_us"] - derivation["after_us"]
    assert sum(s["gain_us"] for s in derivation["steps"]) == pytest.approx(whole, rel=1e-6)
    before, service = from_bytes(sent), Client(live.url)
    for step in range(1, len(derivation["steps"]) + 1):
        frame = service.frame(job["id"], step, tmp_path / f"{step}.json")
        assert frame.stat().st_size < 1 << 20  # the weights, which all steps share, are in one file
        assert check(before, load(frame), trials=1).verdict == "passed"
    assert live.http.get(job["links"]["frames"].format(step=999)).status_code == 404
    page = live.http.get(f"/jobs/{job['id']}").text
    assert page.count("data-step=") == 2 * len(derivation["steps"]) + 1


def with_data(name: str = "model.onnx.data", files: int = 1) -> dict[str, bytes]:
    """An ONNX model whose weights are in files beside it, as PyTorch writes it: name → bytes."""
    nodes = [helper.make_node("Add", ["x" if i == 0 else f"y{i - 1}", f"w{i}"], [f"y{i}"]) for i in range(2)]
    weights, data = [], {}
    for i in range(2):
        place = name if files == 1 else f"{name}.{i}"
        proto = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[512], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", place), ("offset", len(data.get(place, b""))), ("length", 2048)):
            proto.external_data.add(key=key, value=str(value))
        data[place] = data.get(place, b"") + bytes([0, 0, 128, 63]) * 512
        weights.append(proto)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [512]) for n in ("x", "y1")]
    graph = helper.make_graph(nodes, "beside", ends[:1], ends[1:], initializer=weights)
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return {"graph": made.SerializeToString(), **data}


@pytest.mark.parametrize(
    ("files", "name"), [(1, "model.onnx.data"), (2, "model.onnx.data"), (1, "модель 模型 e\u0301.data")]
)
def test_an_onnx_model_comes_with_the_files_of_its_weights(live: Live, files: int, name: str) -> None:
    graph, *data = with_data(name, files).items()
    parts = [("graph", ("model.onnx", graph[1])), *(("data", (name, body)) for name, body in data)]
    answer = live.http.post("/v1/jobs", files=parts, params={"time_limit": 10})
    assert answer.status_code in (200, 202)  # at once where another test had the same model optimized
    until(lambda: live.succeeded(answer), 120)
    result = from_bytes(live.http.get(f"{answer.headers['location']}/result").content)
    made = reference.run(result, {"x": np.zeros(512, np.float32)})
    assert (made["y1"] == 2.0).all()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "no other file came with the model"),
        ([("data", ("other.data", b"x" * 4096))], "beside the model came other.data"),
        ([("data", ("model.onnx.data", b"x" * 4000))], "the file has 4000"),
    ],
)
def test_what_is_wrong_with_files_beside_a_model_is_said(live: Live, sent: list[object], said: str) -> None:
    parts = [("graph", ("model.onnx", with_data()["graph"])), *sent]
    answer = live.http.post("/v1/optimize", files=parts)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["detail"]
    assert "model.onnx.data" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["../w.data", "..", ".hidden", "model", "", "a/b\\..", "x" * 300, "\u202eatad.w"])
def test_names_of_files_beside_a_model_are_names(live: Live, name: str) -> None:
    graph = with_data()["graph"]
    answer = live.http.post("/v1/jobs", files=[("graph", ("m.onnx", graph)), ("data", (name, b"x"))])
    inside = name.rsplit("/", 1)[-1] == "w.data"  # of a path only the file's own name is taken
    assert answer.status_code == (202 if inside else 422)
