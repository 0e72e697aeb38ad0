"""The HTTP surface without workers: what is accepted, what is refused and how, what the library looks like."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sampling import slow
from service_testing import GRAPH, TINY, files_below, tiny, until
from starlette.testclient import TestClient

from superopt.gate import updated, write_run
from superopt.pipeline import EFFORTS
from superopt.pipeline.options import PRECISIONS
from superopt.report.corpus import CorpusModelResult, CorpusRun
from superopt.report.naming import rule_name
from superopt.rules import load_library, parse_rule
from superopt.rules.float_verdicts import MODES
from superopt.runtime.protocol import RUNTIMES
from superopt.server.app import create_app
from superopt.server.http.parameters import DESCRIPTIONS
from superopt.server.http.problems import TITLES
from superopt.server.routes import render
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.server.views.rule_trials import try_rule
from superopt.verifier import check_certificate

LIBRARY = load_library()
ANY = next(iter(LIBRARY))
FOLDING = next(i for i in LIBRARY if rule_name(LIBRARY[i]) == "fold BatchNormalization into Conv")

JSON = {"Content-Type": GRAPH}
ONNX = {"Content-Type": "application/octet-stream"}


def problem(response: object, status: int, kind: str) -> dict[str, object]:
    """Assert that an answer is this problem; returns its document."""
    assert response.status_code == status, response.text  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    found: dict[str, object] = response.json()  # type: ignore[attr-defined]
    assert found["type"] == f"urn:superopt:problem:{kind}"
    assert (found["status"], found["title"]) == (status, TITLES[kind])
    assert found["detail"]
    return found


def test_a_job_is_accepted_and_can_be_looked_at(client: TestClient) -> None:
    answer = client.post("/v1/jobs?time_limit=3&dim=N%3D8&disable=conv", content=tiny(), headers=JSON)
    assert answer.status_code == 202
    job = client.get(answer.headers["location"]).json()
    assert (job["state"], job["ahead"], job["attempt"]) == ("queued", 0, 0)
    assert job["options"] == {"target": "cpu", "time_limit": 3.0, "seed": 0, "measure": False, "strict": False,
                              "floats": "standard", "runtime": "onnxruntime", "effort": "default",
                              "functions": "keep", "sizes": {"N": 8}, "enable": [], "disable": ["conv"]}  # fmt: skip
    problem(client.get(f"{answer.headers['location']}/result"), 409, "not-ready")
    problem(client.get(f"{answer.headers['location']}/report"), 409, "not-ready")
    assert client.delete(answer.headers["location"]).json()["state"] == "cancelled"
    assert client.delete(answer.headers["location"]).json()["state"] == "cancelled"
    problem(client.get(f"{answer.headers['location']}/result"), 409, "job-cancelled")


def test_a_job_in_mixed_precision_has_its_budget(client: TestClient) -> None:
    answer = client.post("/v1/jobs?precision=mixed:bfloat16&error=0.01", content=tiny(), headers=JSON)
    assert answer.status_code == 202
    options = client.get(answer.headers["location"]).json()["options"]
    assert (options["precision"], options["error"]) == ("mixed:bfloat16", 0.01)


def test_repeats_find_the_same_job(client: TestClient) -> None:
    keyed = {**JSON, "Idempotency-Key": "once"}
    first = client.post("/v1/jobs", content=tiny(), headers=keyed).json()["id"]
    assert client.post("/v1/jobs", content=tiny(), headers=keyed).json()["id"] == first
    problem(client.post("/v1/jobs?seed=1", content=tiny(), headers=keyed), 422, "idempotency-key-reused")
    own = str(uuid.uuid4())
    assert client.put(f"/v1/jobs/{own}", content=tiny(), headers=JSON).json()["id"] == own
    assert client.put(f"/v1/jobs/{own.upper()}", content=tiny(), headers=JSON).json()["id"] == own
    problem(client.put(f"/v1/jobs/{own}", content=tiny("other"), headers=JSON), 409, "conflict")
    problem(client.put("/v1/jobs/mine", content=tiny(), headers=JSON), 400, "bad-request")


BAD_BODIES = {
    "empty": (b"", ONNX, 422, "invalid-model"),
    "not JSON": (b"garbage", JSON, 422, "invalid-model"),
    "form": (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported-media-type"),
    "no type": (b"x", {}, 415, "unsupported-media-type"),
    "compressed": (gzip.compress(tiny()), {**JSON, "Content-Encoding": "gzip"}, 415, "unsupported-media-type"),
    "no boundary": (b"x", {"Content-Type": "multipart/form-data"}, 415, "unsupported-media-type"),
    "not multipart": (b"x", {"Content-Type": "multipart/form-data; boundary=b"}, 422, "invalid-model"),
    "cut multipart": (b'--b\r\nContent-Disposition: form-data; name="graph"; filename="g"\r\n\r\nabc',
                      {"Content-Type": "multipart/form-data; boundary=b"}, 422, "invalid-model"),
    "no graph part": (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nabc\r\n--b--\r\n',
                      {"Content-Type": "multipart/form-data; boundary=b"}, 422, "invalid-model"),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/optimize"])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies(name: str, path: str, client: TestClient, tmp_path: Path) -> None:
    body, headers, status, kind = BAD_BODIES[name]
    problem(client.post(path, content=body, headers=headers), status, kind)
    assert not [f for f in files_below(tmp_path) if f.startswith(("blobs", "incoming", "work"))]


def test_limits_are_counted_while_the_body_streams(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path, limits=ServiceLimits(body=1000, sync_body=500))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        for path, most in (("/v1/jobs", 1000), ("/v1/optimize", 500)):
            problem(client.post(path, content=b"{" + b" " * most, headers=JSON), 413, "too-large")
            chunks = (b"{" * 100 for _ in range(50))  # no Content-Length
            problem(client.post(path, content=chunks, headers=JSON), 413, "too-large")
            parts = {"graph": ("g", b"{" * 300), "weights.safetensors": ("w", b"x" * most)}
            problem(client.post(path, files=parts), 413, "too-large")
        problem(client.post("/v1/jobs", data={"f": "x" * 400}, files={"x": b""}), 422, "invalid-model")
    assert not [f for f in files_below(tmp_path) if f.startswith(("blobs", "incoming", "work"))]


def test_large_bodies_are_taken(client: TestClient) -> None:
    body = b"{" + b" " * (40 << 20)
    assert client.post("/v1/jobs", content=body, headers=JSON).status_code == 202


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("target=gpu", "target"), ("target=profile:../../etc/passwd", "target"), ("target=profile:none", "target"),
        ("time_limit=-1", "time_limit"), ("time_limit=nan", "time_limit"), ("time_limit=1e9", "time_limit"),
        ("seed=x", "seed"), ("seed=-1", "seed"), ("seed=99999999999", "seed"), ("dim=N", "dim"), ("dim=N=0", "dim"),
        ("enable=no-such-rule", "enable"), ("disable=matmu", "disable"), ("measure=maybe", "measure"),
        ("opset=0", "opset"), ("opset=x", "opset"), ("opset=13&opset=14", "opset"),
        ("precision=half", "precision"), ("error=0.001", "error"), ("precision=mixed&error=2", "error"),
        ("precision=mixed&error=x", "error"),
        ("target=", "target"), ("seed=1&seed=2", "seed"), ("dim=N=8&dim=N=9", "dim"), ("upload=x", "upload"),
        ("source=s3://a/b", "source"),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(query: str, name: str, client: TestClient) -> None:
    found = problem(client.post(f"/v1/jobs?{query}", content=tiny(), headers=JSON), 400, "invalid-parameter")
    assert found["errors"][0]["parameter"] == name  # type: ignore[index]
    assert client.app.state.service.store.counts() == {}  # type: ignore[attr-defined]


def test_unknown_things(client: TestClient) -> None:
    nobody = f"/v1/jobs/{uuid.uuid4()}"
    for path in (
        "/v1/jobs/x", nobody, f"{nobody}/result", f"{nobody}/events", "/v1/rules/none", "/v1/rules/none/certificate",
        "/nowhere", "/static/none",
    ):  # fmt: skip
        problem(client.get(path), 404, "not-found")
    problem(client.delete(nobody), 404, "not-found")
    problem(client.patch("/v1/jobs"), 405, "method-not-allowed")
    assert client.patch(nobody).headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    problem(client.get("/v1/rules?limit=x"), 400, "invalid-parameter")


def test_quota(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path, limits=ServiceLimits(active=2))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        for n in range(2):
            assert client.post(f"/v1/jobs?seed={n}", content=tiny(), headers=JSON).status_code == 202
        over = client.post("/v1/jobs?seed=9", content=tiny(), headers=JSON)
        problem(over, 429, "quota")
        assert int(over.headers["retry-after"]) > 0


def test_keys(client: TestClient) -> None:
    keys = client.app.state.service.keys  # type: ignore[attr-defined]
    mine, yours = keys.add("me"), keys.add("you", active=1)
    assert mine not in str(keys.all())
    problem(client.post("/v1/jobs", content=tiny(), headers=JSON), 401, "unauthorised")
    for wrong in ("nonsense", mine[:-1], "so_" + mine.split("_")[1] + "_", yours + "x"):
        bad = {**JSON, "Authorization": f"Bearer {wrong}"}
        assert "bearer" in client.post("/v1/jobs", content=tiny(), headers=bad).headers["www-authenticate"].lower()
    answer = client.post("/v1/jobs", content=tiny(), headers={**JSON, "Authorization": f"Bearer {mine}"})
    assert answer.status_code == 202
    place = answer.headers["location"]
    assert client.get(place).status_code == 200  # whoever knows the id may look
    problem(client.delete(place), 401, "unauthorised")
    problem(client.delete(place, headers={"X-API-Key": yours}), 403, "forbidden")
    assert client.delete(place, headers={"X-API-Key": mine}).status_code == 200
    yours_header = {**JSON, "X-API-Key": yours}
    assert client.post("/v1/jobs", content=tiny(), headers=yours_header).status_code == 202
    problem(client.post("/v1/jobs?seed=1", content=tiny(), headers=yours_header), 429, "quota")
    keys.disable(mine.split("_")[1])
    problem(client.post("/v1/jobs", content=tiny(), headers={**JSON, "X-API-Key": mine}), 401, "unauthorised")
    assert client.get("/v1/rules").status_code == 200


def test_pages_of_other_sites_are_refused(client: TestClient) -> None:
    problem(client.get("/v1/limits", headers={"Host": "evil.example"}), 403, "forbidden")
    problem(client.get("/v1/limits", headers={"Host": "[::1"}), 403, "forbidden")
    for header in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        problem(client.post("/v1/jobs", content=tiny(), headers={**JSON, **header}), 403, "forbidden")
    same = {**JSON, "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/jobs", content=tiny(), headers=same).status_code == 202


def test_the_library(client: TestClient) -> None:
    seen: list[str] = []
    place: str | None = "/v1/rules?limit=500"
    while place:
        answer = client.get(place)
        seen += [r["id"] for r in answer.json()["rules"]]
        place = answer.links.get("next", {}).get("url")
    assert len(seen) == len(set(seen)) == answer.json()["total"] > 100
    assert (
        client.get("/v1/rules", headers={"If-None-Match": client.get("/v1/rules").headers["etag"]}).status_code == 304
    )
    convs = client.get("/v1/rules?operator=Conv&verdict=proved_all_sizes&q=relu").json()
    assert all("Conv" in r["operators"] and "relu" in json.dumps(r).lower() for r in convs["rules"])
    rule = client.get(f"/v1/rules/{seen[0]}").json()
    assert {"lhs", "rhs", "forall", "where", "verdict", "proof", "digest"} <= set(rule)
    operators = client.get("/v1/operators").json()
    assert "MatMul" in {o["name"] for o in operators["operators"]}
    assert client.get("/v1/profiles").json()["profiles"][0]["target"] == "cpu"
    assert client.get("/v1/limits").json()["limits"]["body"] == ServiceLimits().body


def test_every_operation_is_documented(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    operations = [o for path in document["paths"].values() for o in path.values()]
    names = [o["operationId"] for o in operations]
    assert len(set(names)) == len(names) >= 15
    assert all(o["summary"] and o["responses"] for o in operations)
    assert "``" not in json.dumps(document)
    page = client.get("/api").text
    assert "default false" in page
    assert "default False" not in page
    assert "`" not in page.partition('id="operations-title"')[2]
    body = document["paths"]["/v1/optimize"]["post"]["requestBody"]["content"]
    assert set(body) == {GRAPH, "application/octet-stream", "multipart/form-data"}
    example = body[GRAPH]["examples"]["shapes only"]["value"]
    assert client.post("/v1/jobs", content=json.dumps(example), headers=JSON).status_code == 202
    references = set(json.dumps(document).split('"#/components/schemas/')[1:])
    assert {r.split('"')[0] for r in references} <= set(document["components"]["schemas"])


def test_health_and_metrics(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/livez").json() == client.get("/readyz").json() == {"status": "ok"}
    client.post("/v1/jobs", content=tiny(), headers=JSON)
    text = client.get("/metrics").text
    assert 'superopt_jobs{state="queued"} 1' in text
    assert 'superopt_http_requests_total{method="POST",route="/v1/jobs",status="202"} 1' in text
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        until(lambda: client.get("/readyz").status_code == 503, 10)
        assert "disk is full" in str(problem(client.get("/readyz"), 503, "unavailable"))
    until(lambda: client.get("/readyz").status_code == 200)


def test_the_words_of_options_are_the_engines(client: TestClient) -> None:
    known = {"float": MODES, "runtime": tuple(RUNTIMES), "effort": tuple(EFFORTS), "precision": PRECISIONS}
    for name, words in known.items():
        assert tuple(DESCRIPTIONS[name][0]["enum"]) == words
        assert client.post(f"/v1/jobs?{name}={words[0]}", content=tiny(), headers=JSON).status_code == 202
        problem(client.post(f"/v1/jobs?{name}=best", content=tiny(), headers=JSON), 400, "invalid-parameter")


@pytest.mark.parametrize("path", ["/v1/rules?operatr=Conv", "/v1/limits?x=1", "/v1/profiles?a"])
def test_a_parameter_that_does_not_exist_is_named(client: TestClient, path: str) -> None:
    name = path.partition("?")[2].partition("=")[0]
    found = problem(client.get(path), 400, "invalid-parameter")
    assert found["errors"] == [{"parameter": name, "detail": "there is no such parameter"}]


def test_pads_are_drawn_whole(client: TestClient) -> None:
    """What defines a rule is in its drawing, however long it is."""
    long = next(i for i in LIBRARY if any("e_3 + p_3" in text for text in client.get(f"/v1/rules/{i}").json()["rhs"]))
    page = client.get(f"/rules/{long}").text
    drawn = " ".join(re.findall(r'<text class="more"[^>]*>([^<]*)</text>', page))
    assert "pads=[e_0 + p_0, e_1 + p_1, e_2 + p_2, e_3 + p_3]" in drawn


def test_health_does_not_wait_for_a_database_that_hangs(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    hangs = threading.Event()
    monkeypatch.setattr(service.store, "look", hangs.wait)
    try:
        until(lambda: "database" in client.get("/readyz").text)
        assert client.get("/livez").status_code == 200
        problem(client.get("/readyz"), 503, "unavailable")
    finally:
        hangs.set()
    until(lambda: client.get("/readyz").status_code == 200)


def test_security_headers_everywhere(client: TestClient) -> None:
    for path in ("/", "/rules", "/v1/rules", "/nowhere", "/static/style.css"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        good = service.store.database
        service.store.database = type(good)(replace(settings, database=f"sqlite:///{tmp_path}/no/folder/x").url)
        until(lambda: client.get("/readyz").status_code == 503, 10)
        assert "database" in str(problem(client.get("/readyz"), 503, "unavailable"))
        problem(client.get(f"/v1/jobs/{uuid.uuid4()}"), 503, "unavailable")
        service.store.database = good
        until(lambda: client.get("/readyz").status_code == 200)


def test_rule_pages_need_no_script(client: TestClient) -> None:
    """What they say is in the page as it comes, and nothing in it is script or style but by reference."""
    page = client.get("/rules?family=conv").text
    assert inline_script(page) == []
    assert "style=" not in page
    for rule_id in [r["id"] for r in client.get("/v1/rules?limit=500").json()["rules"]][::25]:
        page = client.get(f"/rules/{rule_id}").text
        assert page.count("<svg") == 2
        assert inline_script(page) == []
        assert "style=" not in page
        assert "equals" in page
    assert client.get("/rules/none").status_code == 404


def inline_script(page: str) -> list[str]:
    """Scripts of a page other than the one file that it refers to."""
    return [
        s for s in page.split("<script")[1:] if not s.startswith(' type="module" src="/static/app/app.js"></script>')
    ]


def test_pages_say_that_they_are_not_built(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "built", lambda: False)
    for path in ("/", "/rules", f"/rules/{ANY}", "/corpus"):
        page = client.get(path)
        assert page.status_code == 200
        assert "not built here" in page.text
        assert "<script" not in page.text


def test_a_rule_is_tried(client: TestClient) -> None:
    for rule_id in (FOLDING, ANY):
        found = client.get(f"/v1/rules/{rule_id}/trial?seed=5").json()
        assert found["outcome"] == "equal"
        assert found == client.get(f"/v1/rules/{rule_id}/trial?seed=5").json()
        assert "Both sides agree" in client.get(f"/rules/{rule_id}?seed=5").text
    problem(client.get("/v1/rules/none/trial"), 404, "not-found")
    problem(client.get(f"/v1/rules/{ANY}/trial?seed=-1"), 400, "invalid-parameter")
    assert client.get(f"/rules/{ANY}?seed=x").status_code == 400


@pytest.mark.parametrize("every", [slow(1), 10])
def test_rules_of_the_library_hold_where_they_are_tried(every: int) -> None:
    library = load_library()
    outcomes = {rule_id: try_rule(library[rule_id], 1)["outcome"] for rule_id in sorted(library)[::every]}
    assert "different" not in outcomes.values()
    assert sum(o == "equal" for o in outcomes.values()) > 0.98 * len(outcomes)


def test_a_false_rule_is_seen_to_be_false() -> None:
    rule = parse_rule({"id": "false", "forall": {"x": "f[n]"}, "lhs": ["Relu(x)"], "rhs": ["Sigmoid(x)"]})
    assert try_rule(rule, 1)["outcome"] == "different"


def test_kept_answers_are_what_the_route_says(client: TestClient) -> None:
    first = client.get("/v1/rules?family=conv&limit=3")
    again = client.get("/v1/rules?family=conv&limit=3")
    plain = client.get("/v1/rules?family=conv&limit=3", headers={"Accept-Encoding": "identity"})
    assert first.json() == again.json() == plain.json()
    assert first.headers["etag"] == again.headers["etag"] == plain.headers["etag"]
    assert (again.headers["content-encoding"], plain.headers.get("content-encoding")) == ("gzip", None)
    tag = {"If-None-Match": first.headers["etag"]}
    same = client.get("/v1/rules?family=conv&limit=3", headers=tag)
    assert (same.status_code, same.content) == (304, b"")
    assert client.get("/v1/rules?family=conv&limit=4", headers=tag).status_code == 200  # asked for with a tag first
    assert client.get("/v1/rules?family=conv&limit=4").json()["rules"][:3] == first.json()["rules"]
    for _ in range(2):
        problem(client.get("/v1/rules?limit=0"), 400, "invalid-parameter")
        problem(client.get("/v1/rules/none"), 404, "not-found")
    refused = client.get("/v1/rules", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    assert 'route="/v1/rules",status="304"' in client.get("/metrics").text


def test_certificates_are_made_and_kept(client: TestClient, tmp_path: Path) -> None:
    answer = client.get(f"/v1/rules/{ANY}/certificate")
    assert answer.status_code == 200, answer.text
    path = tmp_path / "rule.json"
    path.write_bytes(answer.content)
    assert check_certificate(path).valid
    [kept] = (tmp_path / "certificates").glob("*/*.json")  # by verifier and rule
    assert kept.read_bytes() == answer.content
    assert "when its certificate was made here" in client.get(f"/rules/{ANY}").text
    tag = {"If-None-Match": answer.headers["etag"]}
    assert client.get(f"/v1/rules/{ANY}/certificate", headers=tag).status_code == 304


def test_a_parameter_that_does_not_exist_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/jobs?timelimit=3&seed=1", content=tiny(), headers=JSON)
    document = problem(answer, 400, "invalid-parameter")
    assert document["errors"] == [{"parameter": "timelimit", "detail": "there is no such parameter"}]
    assert "did you mean time_limit?" in document["detail"]
    assert (
        "seed"
        in problem(client.post("/v1/optimize?q=1", content=tiny(), headers=JSON), 400, "invalid-parameter")["detail"]
    )


def test_the_corpus_page_shows_what_was_recorded(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    entry = 'name = "{}"\nfamily = "f"\nparameters = 5\nnodes = 2\nwhy = "<b>because</b>"\n'
    (corpus / "manifest.toml").write_text("".join(f"[[model]]\n{entry.format(n)}" for n in ("one", "two")))
    rows = (CorpusModelResult("corpus/one.json", "d", "improved", 100.0, 50.0, 1.0, (2, 1), "passed", {FOLDING: 3}),)
    old = CorpusRun("profile:here", "p", "a device", "r1", "2026-01-01", "1", {}, {}, rows)
    new = replace(old, revision="r2", rows=(replace(rows[0], after_us=80.0),))
    worse = updated(new, updated(old, None, partial=False), partial=False)
    write_run(corpus / "baseline.json", worse)
    with TestClient(
        create_app(ServiceSettings(data=tmp_path / "data", corpus=corpus)), base_url="http://localhost"
    ) as client:
        page = client.get("/corpus").text
        assert "0.800" in page
        assert "1 slower than in the previous run: one" in page
        assert "<b>because" not in page
        assert f"/rules/{FOLDING}" in page
        assert "fold BatchNormalization into Conv ×3" in page
        rule = client.get(f"/rules/{FOLDING}").text
        assert "profile:here" in rule
        assert "tiny forms" not in rule
        assert 'href="/corpus#one"' in rule
        assert "Not applied in any of the 1 models" in client.get(f"/rules/{ANY}").text


def test_hostile_text_is_escaped_on_pages(client: TestClient) -> None:
    evil = '<script>alert(1)</script>"\x1b[31m'
    page = client.get("/rules", params={"q": evil, "family": evil}).text
    assert inline_script(page) == []
    answer = client.post("/optimize", files={"graph": (evil, json.dumps(TINY))}, follow_redirects=False)
    assert answer.status_code == 303
    page = client.get(answer.headers["location"]).text
    assert inline_script(page) == []
    assert "\x1b" not in page
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in page
    refused = client.post("/optimize", files={"graph": ("g", b"")}, data={"disable": evil})
    assert refused.status_code in (400, 422)
    assert inline_script(refused.text) == []


def test_the_form_answers_scripts_with_json(client: TestClient) -> None:
    asked = {"Accept": "application/json"}
    answer = client.post("/optimize", files={"graph": ("g.json", json.dumps(TINY))}, headers=asked)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert client.get(answer.headers["location"]).status_code == 200
    problem(client.post("/optimize", files={"graph": ("g", b"")}, headers=asked), 422, "invalid-model")
    stopped = client.post(
        f"{answer.headers['location']}/cancel", files={"cancel": (None, "yes")}, follow_redirects=False
    )
    assert (stopped.status_code, stopped.headers["location"]) == (303, answer.headers["location"])
    assert client.get(answer.json()["links"]["self"]).json()["state"] == "cancelled"
