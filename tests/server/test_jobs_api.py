"""Many jobs at once, what OpenAPI says of them, pages for browsers, errors of the machine, what is logged."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from service_testing import GRAPH, tiny
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from superopt.ir.errors import UsageError
from superopt.server.app import create_app
from superopt.server.http.histogram import Histogram
from superopt.server.http.keys import ApiKeyStore
from superopt.server.http.system_errors import meaning
from superopt.server.jobs.blobs import IncomingBlob
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.result_reuse import reusable, unfinished
from superopt.server.settings import ServiceSettings, default_data


def submitted(client: TestClient, name: str, **headers: str) -> str:
    answer = client.post("/v1/jobs", content=tiny(name), headers={"Content-Type": GRAPH, **headers})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def finished(client: TestClient, name: str, **outputs: Any) -> str:
    """A job that has ended as if a worker had done it."""
    service = service_of(client)
    headers = {"Content-Type": "application/json"}
    job = client.post("/v1/jobs", content=tiny(name), headers=headers).json()["id"]
    held = service.store.claim("w", 30)
    assert held is not None
    assert held.id == job
    files = {}
    for kind in ("json", "onnx", "report"):
        with IncomingBlob(service.blobs) as spool:
            spool.write(b"{}")
            files[kind] = {"sha256": spool.keep(), "size": 2}
    done = {"status": "unchanged", "name": name, "files": files, "without": {}, "input": 10, **outputs}
    assert service.store.succeed(held, done, cache=reusable(done))
    return str(job)


def service_of(client: TestClient) -> Any:
    return client.app.state.service  # type: ignore[attr-defined]


def test_jobs_are_listed_a_page_at_a_time(client: TestClient) -> None:
    ids = [submitted(client, f"model {n}") for n in range(5)]
    found, path, pages = [], "/v1/jobs?limit=2", 0
    while path:
        page = client.get(path).json()
        found += [job["id"] for job in page["jobs"]]
        path, pages = page["next"], pages + 1
    assert (sorted(found), pages) == (sorted(ids), 3)
    client.delete(f"/v1/jobs/{ids[0]}")
    states = {"queued": ids[1:], "cancelled": ids[:1], "running": []}
    for state, expected in states.items():
        rows = client.get("/v1/jobs", params={"state": state}).json()["jobs"]
        assert sorted(r["id"] for r in rows) == sorted(expected)
    assert [r["id"] for r in client.get("/v1/jobs", params={"id": ids[2]}).json()["jobs"]] == [ids[2]]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [("state=lost", "state"), ("id=x", "id"), ("limit=0", "limit"), ("limit=201", "limit"), ("limit=two", "limit"),
     ("after=yesterday", "after"), ("name=a%00b", "name"), ("owner=you", "owner")],
)  # fmt: skip
def test_filters_that_are_none_are_named(client: TestClient, query: str, parameter: str) -> None:
    answer = client.get(f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["parameter"] == parameter


def test_an_id_is_the_same_however_it_is_written(client: TestClient) -> None:
    """macOS' uuidgen writes capitals."""
    own = "ABCDEF00-1234-4567-89AB-CDEF01234567"
    headers = {"Content-Type": GRAPH}
    for written in (own, own.lower(), own.replace("-", ""), f"urn:uuid:{own}"):
        assert client.put(f"/v1/jobs/{written}", content=tiny(), headers=headers).json()["id"] == own.lower()
        assert client.get(f"/v1/jobs/{written}").json()["id"] == own.lower()
        assert client.get("/v1/jobs", params={"id": written}).json()["jobs"][0]["id"] == own.lower()
        assert client.get(f"/jobs/{written}").status_code == 200
    assert client.delete(f"/v1/jobs/{own}").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    "header", ["wait=1", 'wait="1"', "WAIT=1", "respond-async, wait=1", "return=minimal; wait = 1"]
)
def test_a_preference_is_read_as_its_rfc_writes_it(client: TestClient, header: str) -> None:
    answer = client.post("/v1/jobs", content=tiny(), headers={"Content-Type": GRAPH, "Prefer": header})
    assert answer.headers["preference-applied"] == "wait=1"


def test_many_jobs_are_cancelled_but_never_all_by_accident(client: TestClient) -> None:
    ids = [submitted(client, f"model {n}") for n in range(4)]
    assert client.delete("/v1/jobs").status_code == 400
    some = client.delete("/v1/jobs", params={"id": ids[:2]}).json()
    assert {job["id"]: job["state"] for job in some["jobs"]} == dict.fromkeys(ids[:2], "cancelled")
    assert client.delete("/v1/jobs", params={"state": "succeeded"}).json() == {"jobs": [], "next": None}
    rest = client.delete("/v1/jobs", params={"state": "queued"}).json()
    assert sorted(job["id"] for job in rest["jobs"]) == sorted(ids[2:])
    assert client.get("/v1/jobs", params={"state": "queued"}).json()["jobs"] == []


def test_each_key_sees_its_own_jobs_usage_and_metrics(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path)
    database = JobDatabase(settings.url)
    database.migrate()
    names = ("one", "two", "operator")
    made = {name: ApiKeyStore(database).add(name, operator=name == "operator") for name in names}
    database.close()
    one, two, operator = ({"Authorization": f"Bearer {made[name]}"} for name in names)
    with TestClient(create_app(settings), base_url="http://localhost") as http:
        job = submitted(http, "mine", **one)
        other = submitted(http, "theirs", **two)
        assert [j["id"] for j in http.get("/v1/jobs", headers=one).json()["jobs"]] == [job]
        assert http.delete("/v1/jobs", params={"id": other}, headers=one).json()["jobs"] == []
        assert http.get(f"/v1/jobs/{other}").json()["state"] == "queued"
        for path in ("/v1/jobs", "/v1/usage", "/metrics"):
            assert http.get(path).status_code == 401
        assert [u["name"] for u in http.get("/v1/usage", headers=one).json()["usage"]] == ["one"]
        assert {u["name"] for u in http.get("/v1/usage", headers=operator).json()["usage"]} == {"one", "two"}
        ids = [made[name].split("_")[1] for name in names]
        seen = [http.get("/metrics", headers=headers).text for headers in (one, operator)]
        assert [f'key="{ids[1]}"' in text for text in seen] == [False, True]


def test_metrics_have_histograms(client: TestClient) -> None:
    client.get("/v1/limits")
    text = client.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("superopt_http_request_seconds")]
    assert any('route="/v1/limits",outcome="2xx",le="+Inf"} 1' in line for line in lines)
    assert any(line.startswith("superopt_http_request_seconds_sum{") for line in lines)
    assert "# TYPE superopt_job_queue_seconds histogram" in text
    assert "# TYPE superopt_job_run_seconds histogram" in text


def test_buckets_hold_what_is_below_them() -> None:
    made = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        made.observe(seconds, {"what": 'a "b"\n'})
    label = 'what="a \\"b\\"\\n"'
    assert list(made.lines("s")) == [
        f's_bucket{{{label},le="1"}} 2', f's_bucket{{{label},le="2"}} 3', f's_bucket{{{label},le="+Inf"}} 4',
        f"s_sum{{{label}}} 12", f"s_count{{{label}}} 4",
    ]  # fmt: skip


def test_the_document_declares_what_headers_do(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["servers"][0]["url"] == "/"
    named = {(p["name"], p["in"]) for p in document["paths"]["/v1/jobs"]["post"]["parameters"]}
    assert named >= {("Idempotency-Key", "header"), ("Prefer", "header"), ("Webhook-Secret", "header"),
                     ("webhook", "query")}  # fmt: skip
    assert {p["name"] for p in document["paths"]["/v1/jobs"]["get"]["parameters"]} == {
        "state", "id", "name", "limit", "after",
    }  # fmt: skip


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [(BROWSER, "text/html"), ("application/json", "application/problem+json"), ("*/*", "application/problem+json"),
     ("application/json, text/html;q=0.5", "application/problem+json"), ("", "application/problem+json")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/jobs/nothing", 404),
        ("POST", "/rules", 405),
        ("GET", "/static/no.css", 404),
    ],
)
def test_a_browser_gets_a_page_and_a_program_a_document(
    client: TestClient, accept: str, kind: str, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (status, kind)
    assert "Accept" in answer.headers["vary"]
    if kind == "text/html":
        assert "</html>" in answer.text


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [(errno.ENOSPC, "disk-full", "disk"), (errno.EDQUOT, "disk-full", "disk"),
     (errno.EMFILE, "too-many-files", "files"), (errno.ENFILE, "too-many-files", "files"),
     (errno.EACCES, "not-writable", "may not write"), (errno.EROFS, "not-writable", "may not write"),
     (errno.EIO, "disk-error", "reports errors"), (errno.ENOMEM, "out-of-memory", "memory"),
     (errno.EPIPE, "unavailable", "files")],
)  # fmt: skip
def test_errors_of_the_machine_are_told_apart(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, kind: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(service_of(client).store, "enqueue", raising(OSError(code, "no", "/secret/path")))
    answer = client.post("/v1/jobs", content=tiny(), headers={"Content-Type": GRAPH})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (503, f"urn:superopt:problem:{kind}")
    assert said in problem["detail"]
    assert "Retry-After" in answer.headers
    assert "/secret" not in answer.text
    assert "/secret/path" in caplog.text


def test_a_full_disk_of_the_database_is_one_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Exception("database or disk is full")
    inner.sqlite_errorname = "SQLITE_FULL"  # type: ignore[attr-defined]
    monkeypatch.setattr(service_of(client).store, "enqueue", raising(OperationalError("INSERT", {}, inner)))
    answer = client.post("/v1/jobs", content=tiny(), headers={"Content-Type": GRAPH})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:superopt:problem:disk-full")


def test_the_error_that_another_was_made_of_counts() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise UsageError("cannot be written") from error
    except UsageError as error:
        found = meaning(error)
    assert found is not None
    assert found.kind == "disk-full"
    assert meaning(UsageError("cannot be written")) is None


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"stopped": "saturated"}, ""), ({"stopped": "nodes"}, ""), ({}, ""),
        ({"stopped": "time", "time_limit": 3.5}, "stopped at its time limit of 3.5 s"),
        ({"stopped": "interrupted"}, "stopped at the job's time limit"),
        ({"stopped": "saturated", "check": {"verdict": "passed", "reason": ""}}, ""),
        ({"stopped": "saturated", "check": {"verdict": "skipped", "reason": "the time ran out after 3 regions"}},
         "could not be checked (the time ran out after 3 regions)"),
        ({"stopped": "nodes", "check": {"verdict": "failed", "reason": "y differs"}}, "failed its check (y differs)"),
        ({"stopped": "nodes", "reduced": True}, "ran out of memory"),
    ],
)  # fmt: skip
def test_what_is_not_final_says_so_and_answers_for_nobody_else(outputs: dict[str, Any], said: str) -> None:
    assert (said in unfinished(outputs)) if said else not unfinished(outputs)
    assert reusable(outputs) is not bool(said)


def test_a_request_is_a_line_of_the_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer = client.post(
        "/v1/jobs?time_limit=1", content=tiny(), headers={"Content-Type": GRAPH, "X-Request-Id": "abc"}
    )
    assert answer.headers["x-request-id"] == "abc"
    [line] = [r for r in caplog.records if r.name == "superopt.requests"]
    facts = {k: getattr(line, k) for k in ("request", "method", "path", "route", "status", "job")}
    assert facts == {"request": "abc", "method": "POST", "path": "/v1/jobs", "route": "/v1/jobs", "status": 202,
                     "job": answer.json()["id"]}  # fmt: skip
    assert "time_limit" not in str(vars(line))
    new = client.get("/livez", headers={"X-Request-Id": "a b\x7f"}).headers["x-request-id"]
    assert len(new) == 16
    assert len([r for r in caplog.records if r.name == "superopt.requests"]) == 1  # probes are not worth a line


LOG = """
import logging, sys
from superopt.server.http import logs
logs.set_up({level!r}, {form!r}, access={access})
logging.getLogger("superopt.worker").info("job ended", extra={{"job": "j", "state": "failed"}})
logging.getLogger(logs.REQUESTS).info("request", extra={{"status": 200}})
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("x").exception("bad")
"""


@pytest.mark.parametrize(
    ("level", "form", "access", "events"),
    [("info", "json", True, ["job ended", "request", "bad"]), ("info", "auto", False, ["job ended", "bad"]),
     ("error", "json", True, ["bad"])],
)  # fmt: skip
def test_the_log_is_an_object_a_line(level: str, form: str, access: bool, events: list[str]) -> None:
    program = LOG.format(level=level, form=form, access=access)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == events
    assert "ZeroDivisionError" in lines[-1]["error"]
    if len(lines) == 3:
        assert (lines[0]["job"], lines[0]["state"], lines[1]["status"]) == ("j", "failed", 200)


def test_data_is_kept_where_the_desktop_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data() == tmp_path / "superopt"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert default_data() == tmp_path / "home" / ".local" / "share" / "superopt"


@pytest.mark.parametrize(
    "wrong", [{"log_level": "loud"}, {"log_format": "xml"}, {"webhooks": "everywhere"}], ids=lambda w: next(iter(w))
)
def test_words_of_settings_are_looked_at(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of"):
        ServiceSettings(data=tmp_path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "saved"),
    [("resnet50", "resnet50-superopt"), ("my model.onnx", "my_model-superopt"), ("../../etc/passwd", "passwd-superopt"),
     ('a"b\r\nX: y', "a_b_X_y-superopt"), ("modèle", "modèle-superopt"), ("..", None), ("\U0001f600", None)],
)  # fmt: skip
def test_files_are_saved_under_the_name_of_their_model(client: TestClient, model: str, saved: str | None) -> None:
    job = finished(client, model)
    stem = saved or f"superopt-{job[:8]}"
    for path, suffix in ((f"/v1/jobs/{job}/result", ".json"), (f"/v1/jobs/{job}/report", ".report.json"),
                         (f"/jobs/{job}/graph.onnx", ".onnx")):  # fmt: skip
        answer = client.get(path)
        assert answer.status_code == 200
        told = answer.headers["content-disposition"]
        name = unquote(told.partition("''")[2]) if "''" in told else told.partition('"')[2].rstrip('"')
        assert name == f"{stem}{suffix}"


def test_a_search_that_was_cut_short_says_what_is_known(client: TestClient) -> None:
    cut = finished(client, "cut", stopped="time", time_limit=3.0)
    found = client.get(f"/v1/jobs/{cut}").json()
    assert found["unfinished"] == f"stopped at its time limit of 3 s; POST /v1/jobs/{cut}/continue searches on"
    assert client.get(f"/v1/jobs/{cut}/result").headers["superopt-unfinished"] == found["unfinished"]
    for again in (client.post(f"/v1/jobs/{cut}/continue"),
                  client.post("/v1/jobs", content=tiny("cut"), headers={"Content-Type": GRAPH})):  # fmt: skip
        assert again.status_code == 202
        assert again.json()["cached"] is False
        client.delete(again.headers["location"])
    checked = finished(client, "modèle 2", stopped="nodes", check={"verdict": "failed", "reason": "é differs\n"})
    assert "failed its check" in client.get(f"/v1/jobs/{checked}/result").headers["superopt-unfinished"]
    whole = finished(client, "whole", stopped="saturated")
    assert client.get(f"/v1/jobs/{whole}").json()["unfinished"] is None
    assert "superopt-unfinished" not in client.get(f"/v1/jobs/{whole}/result").headers
    again = client.post("/v1/jobs", content=tiny("whole"), headers={"Content-Type": GRAPH})
    assert (again.status_code, again.json()["cached"]) == (200, True)
