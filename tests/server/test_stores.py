"""Models by reference: a service beside a real S3 server (moto's, over HTTP), and what strangers may not reach."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_testing import Live, free_port, start, stop, tiny, until
from test_live import with_data

obstore = pytest.importorskip("obstore", reason="the store is an extra: pip install 'superopt[store]'")
boto3 = pytest.importorskip("boto3", reason="an S3 server for tests: pip install 'moto[s3]' flask flask-cors")
moto_server = pytest.importorskip("moto.server")

from starlette.testclient import TestClient  # noqa: E402

from superopt.client import Client  # noqa: E402
from superopt.formats import load  # noqa: E402
from superopt.ir.errors import UsageError  # noqa: E402
from superopt.server.app import create_app  # noqa: E402
from superopt.server.jobs import object_storage  # noqa: E402
from superopt.server.settings import ServiceLimits, ServiceSettings  # noqa: E402
from superopt.verifier.check.differential import check  # noqa: E402

ALLOWED, RESULTS = "s3://models/in/", "s3://models/out/"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A bucket of an S3 server, which the environment of this process and its children names."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ENDPOINT_URL", f"http://{host}:{port}"), ("ACCESS_KEY_ID", "me"),
                            ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):  # fmt: skip
            patch.setenv(f"AWS_{name}", value)
        object_storage._store.cache_clear()
        found = boto3.resource("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").Bucket("models")
        found.create()
        for name, body in with_data().items():
            found.put_object(Key=f"in/llm/{'model.onnx' if name == 'graph' else name}", Body=body)
        found.put_object(Key="in/tiny.json", Body=tiny())
        found.put_object(Key="private/tiny.json", Body=tiny("private"))
        yield found
    object_storage._store.cache_clear()
    server.stop()


@pytest.fixture
def http(bucket: Any, tmp_path: Path) -> Iterator[TestClient]:
    """The application without workers, with a store."""
    settings = ServiceSettings(
        data=tmp_path, stores=(ALLOWED,), store_results=RESULTS, limits=ServiceLimits(upload=1 << 20)
    )
    with TestClient(create_app(settings), base_url="http://localhost") as made:
        yield made


@pytest.fixture
def live(bucket: Any, tmp_path: Path) -> Iterator[Live]:
    settings = ServiceSettings(tmp_path / "data", port=free_port(), poll=0.1, limits=ServiceLimits(search_seconds=1.0),
                        stores=(ALLOWED,), store_results=RESULTS)  # fmt: skip
    started = start(settings)
    yield started
    stop(started)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", logger="werkzeug")


def blob_of(http: TestClient, *sources: str) -> tuple[str, str]:
    """The digests of a job's model and weights."""
    answer = http.post("/v1/jobs", params={"source": list(sources)})
    assert answer.status_code == 202, answer.text
    job = http.app.state.service.store.job(answer.json()["id"])  # type: ignore[attr-defined]
    return job["model"], job["weights"]


def test_a_model_is_named_optimized_and_written_back(live: Live, bucket: Any, tmp_path: Path) -> None:
    service = Client(live.url)
    job = service.submit(f"{ALLOWED}llm/model.onnx", f"{ALLOWED}llm/model.onnx.data", time_limit=5)
    done = service.wait(job["id"], timeout=120)
    assert (done["state"], done["name"]) == ("succeeded", "model.onnx")
    made = service.deliver(job["id"])
    assert set(made) == {"graph.onnx", "report.json"}
    assert made["graph.onnx"] == f"{RESULTS}{job['id']}/graph.onnx"
    for name in ("in/llm/model.onnx", "in/llm/model.onnx.data", f"out/{job['id']}/graph.onnx"):
        bucket.download_file(name, str(tmp_path / name.rsplit("/", 1)[1]))
    found = check(load(tmp_path / "model.onnx"), load(tmp_path / "graph.onnx"), trials=1)
    assert found.verdict == "passed"
    report = json.loads(bucket.Object(f"out/{job['id']}/report.json").get()["Body"].read())
    assert report["format"] == "superopt.report"
    folder = service.wait(service.submit(f"{ALLOWED}llm/", time_limit=5)["id"], timeout=120)
    assert service.deliver(folder["id"])["graph.onnx"] != made["graph.onnx"]
    sent = live.http.post("/optimize", files={"source": (None, f"{ALLOWED}tiny.json")}, follow_redirects=False)
    assert sent.status_code == 303, sent.text
    until(lambda: live.http.get(f"/v1{sent.headers['location']}").json()["state"] == "succeeded")


def test_new_content_under_an_old_name_is_another_model(http: TestClient, bucket: Any) -> None:
    first = blob_of(http, f"{ALLOWED}tiny.json")
    assert blob_of(http, f"{ALLOWED}tiny.json") == first
    bucket.put_object(Key="in/tiny.json", Body=tiny("other"))
    assert blob_of(http, f"{ALLOWED}tiny.json") != first
    bucket.put_object(Key="in/tiny.json", Body=tiny())
    assert blob_of(http, f"{ALLOWED}tiny.json") == first


def test_what_came_before_is_not_fetched_again(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = blob_of(http, f"{ALLOWED}llm/")
    monkeypatch.setattr(obstore, "get", lambda *_, **__: pytest.fail("fetched again"))
    assert blob_of(http, f"{ALLOWED}llm/") == first


def test_what_changes_while_it_is_read_is_refused(
    http: TestClient, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put_object(Key="in/moving.json", Body=tiny("moving"))
    service, get = http.app.state.service, obstore.get  # type: ignore[attr-defined]
    service.stores = object_storage.ObjectStores([ALLOWED], RESULTS, service.blobs, ServiceLimits(), piece=100)

    def meanwhile(*given: Any, **options: Any) -> Any:
        piece = get(*given, **options)
        bucket.put_object(Key="in/moving.json", Body=tiny("moved!"))
        return piece

    monkeypatch.setattr(obstore, "get", meanwhile)
    answer = http.post("/v1/jobs", params={"source": f"{ALLOWED}moving.json"})
    assert answer.status_code == 409
    assert "was changed while it was read" in answer.json()["detail"]
    assert not list(http.app.state.service.blobs.incoming.iterdir())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("s3://models/private/tiny.json", 403, "below s3://models/in/"),
        ("s3://others/in/tiny.json", 403, "below s3://models/in/"),
        ("s3://models/inner.json", 403, "below"),
        ("s3://models/in/../private/tiny.json", 400, "no reference"),
        ("s3://models/in/%2e%2e/private/tiny.json", 400, "no reference"),
        ("s3://models/in//tiny.json", 400, "no reference"),
        ("s3://models@169.254.169.254/in/tiny.json", 400, "no reference"),
        ("s3://169.254.169.254/latest/meta-data", 403, "below"),
        ("http://169.254.169.254/latest/meta-data", 400, "no reference"),
        ("file:///etc/passwd", 400, "no reference"),
        ("s3://models/in/tiny.json?versionId=1", 400, "no reference"),
        ("s3://models/in/missing.onnx", 422, "there is no"),
        ("s3://models/in/nothing/", 422, "no files directly in"),
        ("s3://models/in/.hidden", 422, "there is no"),
    ],
)
def test_what_a_stranger_names(http: TestClient, source: str, status: int, said: str) -> None:
    answer = http.post("/v1/jobs", params={"source": source})
    assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (status, "source"), answer.text
    assert said in answer.json()["detail"]


def test_limits_and_words(http: TestClient, bucket: Any, tmp_path: Path) -> None:
    assert http.get("/v1/limits").json()["stores"] == {"read": [ALLOWED], "results": RESULTS}
    bucket.put_object(Key="in/big/big.onnx", Body=b"x" * ((1 << 20) + 1))
    assert http.post("/v1/jobs", params={"source": f"{ALLOWED}big/big.onnx"}).status_code == 413
    two = http.post("/v1/jobs", params={"source": [f"{ALLOWED}llm/model.onnx", f"{ALLOWED}tiny.json"]})
    assert (two.status_code, "exactly one" in two.json()["detail"]) == (422, True)
    both = http.post("/v1/jobs", params={"source": f"{ALLOWED}tiny.json", "upload": "0" * 32})
    assert both.status_code == 400
    waiting = http.post("/v1/jobs", params={"source": f"{ALLOWED}tiny.json"}).json()["id"]
    assert http.post(f"/v1/jobs/{waiting}/deliver").status_code == 409  # it has no result yet
    with TestClient(create_app(ServiceSettings(data=tmp_path / "bare")), base_url="http://localhost") as bare:
        none = bare.post("/v1/jobs", params={"source": f"{ALLOWED}tiny.json"})
    assert (none.status_code, "--store" in none.json()["detail"]) == (400, True)
    with pytest.raises(UsageError, match="no place in a store"):
        create_app(ServiceSettings(data=tmp_path / "wrong", stores=("models/in",)))


def test_a_store_that_is_gone(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    object_storage._store.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    try:
        answer = http.post("/v1/jobs", params={"source": f"{ALLOWED}tiny.json"})
    finally:
        object_storage._store.cache_clear()
    assert (answer.status_code, "does not answer" in answer.json()["detail"]) == (503, True)
    assert "retry-after" in answer.headers
    with pytest.raises(ValueError, match="all in the store"):
        Client("http://localhost").submit("s3://models/in/m.onnx", "m.onnx.data")
