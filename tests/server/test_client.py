"""The Python client, against a live service: what its documentation shows, and what it does when things go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_testing import GRAPH, Live, free_port, start, stop, tiny, until
from test_live import with_data

from superopt.client import Client, ServiceError
from superopt.formats import load
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.verifier.check.differential import check


def test_a_model_with_its_weights_beside_it(live: Live, tmp_path: Path) -> None:
    for name, body in with_data().items():
        (tmp_path / ("model.onnx" if name == "graph" else name)).write_bytes(body)
    service = Client(live.url)
    job = service.submit(tmp_path / "model.onnx", tmp_path / "model.onnx.data", time_limit=300)
    done = service.wait(job["id"], timeout=300)
    assert done["state"] == "succeeded"
    made = service.result(job["id"], tmp_path / "faster.onnx")
    assert check(load(tmp_path / "model.onnx"), load(made), trials=1).verdict == "passed"
    assert service.report(job["id"])["format"] == "superopt.report"
    with pytest.raises(ServiceError, match="409"):
        service.go_on(job["id"])


def test_what_is_refused_is_said(live: Live, tmp_path: Path) -> None:
    service = Client(live.url)
    (tmp_path / "m.json").write_bytes(tiny())
    with pytest.raises(ServiceError, match="there is no such parameter") as refused:
        service.submit(tmp_path / "m.json", timelimit=3)
    assert refused.value.status == 400
    (tmp_path / "broken.onnx").write_bytes(b"garbage")
    job = service.submit(tmp_path / "broken.onnx")
    with pytest.raises(ServiceError) as failed:
        service.wait(job["id"], timeout=60)
    assert failed.value.problem["type"].endswith("invalid-model")


def test_jobs_are_listed_and_cancelled_many_at_once(live: Live, tmp_path: Path) -> None:
    client = Client(live.url)
    sent = []
    for n in range(3):
        path = tmp_path / f"many {n}.json"
        path.write_bytes(tiny(f"many {n}"))
        sent.append(client.submit(path, idempotency_key=f"many {n}".replace(" ", "-"), time_limit=1)["id"])
        assert client.submit(path, idempotency_key=f"many-{n}", time_limit=1)["id"] == sent[-1]
    assert {job["id"] for job in client.jobs(name="MANY")} == set(sent)
    assert {job["id"] for job in client.jobs(name="many", limit=1)} == set(sent)
    with pytest.raises(ServiceError):
        client.cancel_all()
    ended = {job["id"] for job in client.cancel_all(id=sent)}
    assert ended <= set(sent)
    assert client.usage()[0]["submitted"] >= 3


def test_rules_and_judgements(live: Live) -> None:
    service = Client(live.url)
    assert service.rules("conv batchnorm fold", limit=3)[0]["name"] == "fold BatchNormalization into Conv"
    found = service.judge({"x": "f[m]"}, ["Relu(Neg(x))"], ["Neg(Relu(x))"])
    assert found["verdict"] == "refuted"


def test_nobody_is_there() -> None:
    with pytest.raises(OSError, match="refused"):
        Client(f"http://127.0.0.1:{free_port()}", patience=0.1).job("x")


def test_a_result_that_is_too_large_for_one_message_comes_in_files(tmp_path: Path) -> None:
    """As above 2 GiB, where a protobuf message ends; the limit is set lower here, below one of the two weights: whether
    they are added up beforehand is a matter of a tenth of a microsecond."""
    limits = ServiceLimits(search_seconds=5.0, inline=1 << 10)
    live = start(ServiceSettings(data=tmp_path / "data", port=free_port(), workers=1, poll=0.1, limits=limits))
    try:
        for name, body in with_data().items():
            (tmp_path / ("model.onnx" if name == "graph" else name)).write_bytes(body)
        service = Client(live.url)
        done = service.wait(service.submit(tmp_path / "model.onnx", tmp_path / "model.onnx.data")["id"], timeout=120)
        assert list(done["links"]["files"]) == ["graph.onnx", "graph.onnx.data"]
        assert list(done["representations"]) == ["multipart/form-data"]
        made = service.result(done["id"], tmp_path / "faster.onnx")
        assert (tmp_path / "graph.onnx.data").stat().st_size > 1 << 10
        assert check(load(tmp_path / "model.onnx"), load(made), trials=1).verdict == "passed"
        place = done["links"]["files"]["graph.onnx.data"]
        whole = live.http.get(place).content
        rest = live.http.get(place, headers={"Range": "bytes=1000-"})
        assert (rest.status_code, rest.content) == (206, whole[1000:])
        assert live.http.get(place, headers={"Range": f"bytes={len(whole) + 9}-"}).status_code == 416
        posted = live.http.get(f"{done['links']['self']}/result")
        again = live.http.post(
            "/v1/jobs", content=posted.content, headers={"Content-Type": posted.headers["content-type"]}
        )
        assert again.status_code in (200, 202), again.text  # what it gives can be posted as it is
        until(lambda: live.succeeded(again))
        assert live.http.get(f"/jobs/{done['id']}/graph.onnx").status_code == 404  # it is not whole by itself
        assert "graph.onnx.data" in live.http.get(f"/jobs/{done['id']}").text
        as_json = live.http.get(f"{done['links']['self']}/result", headers={"Accept": GRAPH})
        assert as_json.status_code == 406
    finally:
        stop(live)
