"""HEAD is answered wherever GET is: the same status and headers, and no body."""

from __future__ import annotations

import anyio
import pytest
from service_testing import GRAPH, tiny
from starlette.testclient import TestClient
from test_jobs_api import finished


@pytest.mark.parametrize(
    "path", ["/", "/rules", "/v1/rules", "/v1/limits", "/livez", "/readyz", "/metrics", "/openapi.json", "/nowhere",
             "/static/style.css"],
)  # fmt: skip
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert 'method="HEAD"' in client.get("/metrics").text


def test_head_of_a_stream_does_not_wait_for_its_end(client: TestClient) -> None:
    job = client.post("/v1/jobs", content=tiny(), headers={"Content-Type": GRAPH}).json()["id"]
    head = client.head(f"/v1/jobs/{job}/events")
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert client.head("/v1/jobs/00000000-0000-0000-0000-000000000000/events").status_code == 404
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "queued"


def test_head_of_a_file_does_not_read_it(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    job = finished(client, "resnet")
    got = client.get(f"/v1/jobs/{job}/result")
    opened: list[str] = []
    monkeypatch.setattr(anyio, "open_file", lambda path, *_, **__: opened.append(str(path)))
    for accept in ("application/json", "multipart/form-data"):
        head = client.head(f"/v1/jobs/{job}/result", headers={"Accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) >= len(got.content)
    assert opened == []
    assert head.headers["content-type"].startswith("multipart/form-data; boundary=")


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/", "GET, HEAD, OPTIONS"), ("/v1/jobs", "DELETE, GET, HEAD, OPTIONS, POST"), ("/v1/optimize", "OPTIONS, POST"),
     ("/v1/uploads/x", "DELETE, HEAD, OPTIONS, PATCH"), ("/openapi.json", "GET, HEAD, OPTIONS")],
)  # fmt: skip
def test_options_and_refused_methods_name_the_methods(client: TestClient, path: str, methods: str) -> None:
    answer = client.options(path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
    refused = client.request("TRACE", path)
    assert (refused.status_code, refused.headers["allow"]) == (405, methods)
    assert methods in refused.json()["detail"]
    assert client.options("/nowhere").status_code == 404
