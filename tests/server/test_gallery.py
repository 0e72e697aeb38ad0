"""What opens without a job: recorded results, any two models side by side, links that stay, the API's own page."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the service is an extra: pip install 'superopt[server]'")

from service_testing import GRAPH, TINY, Live, free_port, start, stop, tiny, until
from starlette.testclient import TestClient

import superopt
from superopt import pipeline
from superopt.formats import load
from superopt.server import examples
from superopt.server.app import create_app
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.retention import JobRetention
from superopt.server.routes.pages import EXAMPLES, FOLDER
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.server.views.charts import timeline
from superopt.server.views.graph_pairing import drawn, side_of
from superopt.server.views.union_graph import union


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = ServiceSettings(data=tmp_path_factory.mktemp("gallery"), corpus=examples())
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        yield client


def test_every_model_of_the_corpus_is_recorded_and_opens(gallery: TestClient) -> None:
    rows = gallery.get("/v1/gallery").json()["models"]
    assert {r["name"] for r in rows} == {p.stem for p in examples().glob("*.json")}
    for row in rows:
        assert row["device"], row["name"]
        entry = gallery.get(row["links"]["self"]).json()
        assert entry["report"]["check"]["verdict"] == "passed" or entry["report"]["status"] == "unchanged"
        assert entry["report"]["search"]["stopped"] not in ("time", "interrupted")
        page = gallery.get(row["page"])
        assert page.status_code == 200
        assert f"<h1>{row['name']}</h1>" in page.text
        assert 'id="timeline"' in page.text


def test_a_rule_that_the_library_has_no_more_is_told(tmp_path: Path) -> None:
    """Results outlive libraries: a recorded one names the rules of its day, and so does a job from before an update."""
    (tmp_path / "results").mkdir()
    shutil.copy(examples() / "lstm.json", tmp_path)
    (tmp_path / "manifest.toml").write_text(
        '[[model]]\nname = "lstm"\nfamily = "f"\nparameters = 9\nnodes = 2\nwhy = "to be tried"\n'
    )
    entry = json.loads(gzip.decompress((examples() / "results" / "lstm.json.gz").read_bytes()))
    known = {"rule": "matmul-447d0000", "count": 1, "verdict": "proved_all_sizes", "gain_us": 1.0, "places": []}
    entry["report"]["rules_applied"] = [known, {**known, "rule": "fold", "verdict": "evaluated"}]
    (tmp_path / "results" / "lstm.json.gz").write_bytes(gzip.compress(json.dumps(entry).encode()))
    with TestClient(create_app(ServiceSettings(data=tmp_path, corpus=tmp_path)), base_url="http://localhost") as client:
        rows = re.findall(r"<tr><td>(.*?)</td>", client.get("/corpus/lstm").text.partition('"rules-fired"')[2])
    assert rows[:2] == ['matmul-447d0000 <small class="fine">not in this library</small>', "constant folding"]


def test_a_recorded_comparison_is_of_the_model_and_of_what_is_reported(gallery: TestClient) -> None:
    for name in ("lstm", "resnet50", "gru"):
        found = gallery.get(f"/v1/gallery/{name}/comparison").json()
        report = gallery.get(f"/v1/gallery/{name}").json()["report"]
        sides = Counter(n["side"] for n in found["nodes"] if n["op"] not in ("input", "output"))
        assert (
            sides["both"] + sides["before"] == report["nodes"]["before"] == len(load(examples() / f"{name}.json").nodes)
        )
        assert sides["both"] + sides["after"] == report["nodes"]["after"]
        for side in ("before", "after"):
            line = found["timeline"][side]
            assert all(found["nodes"][n]["side"] in ("both", side) for n, _, _ in line)
            assert max(alive for *_, alive in line) == report["work"][f"peak_activation_bytes_{side}"]


def test_two_models_are_compared_by_what_they_do(gallery: TestClient) -> None:
    same = gallery.get("/v1/comparison", params={"a": "resnet50", "b": "resnet50"}).json()
    assert {n["side"] for n in same["nodes"]} == {"both"}
    assert same["regions"] == []
    found = gallery.get("/v1/comparison", params={"a": "gpt2", "b": "gpt2_last"}).json()
    sides = Counter(n["side"] for n in found["nodes"])
    assert sides["both"] > 100
    page = gallery.get("/compare", params={"a": "lstm", "b": "gru/result"})
    assert page.status_code == 200
    assert "the same in both" in page.text
    again = gallery.get("/v1/comparison", params={"a": "lstm", "b": "lstm/result"}).json()
    whole = gallery.get("/v1/gallery/lstm/comparison").json()
    for side in ("before", "after"):
        count = sum(n["side"] in ("both", side) for n in again["nodes"])
        assert count == sum(n["side"] in ("both", side) for n in whole["nodes"])


@pytest.mark.parametrize("which", ["nope", "<b>", "a" * 200, "../../etc/passwd", "lstm/result/result", "\x00", "𝔘"])
def test_what_is_unknown_is_a_problem(which: str, gallery: TestClient) -> None:
    answer = gallery.get("/v1/comparison", params={"a": which, "b": "lstm"})
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"] == "application/problem+json"
    page = gallery.get("/compare", params={"a": which, "b": "lstm"})
    assert page.status_code == 404
    assert "<b>" not in page.text
    assert gallery.get(f"/corpus/{quote(which, safe='')}").status_code == 404


def _chain(length: int, names: str, extra: int = -1) -> dict[str, Any]:
    """Relu, Exp, Relu, … as a comparison with itself; ``extra``: where there is one more node."""
    nodes, last = [], "x"
    for i in range(length):
        ops = ["Relu" if i % 2 else "Exp"] + (["Neg"] if i == extra else [])
        for k, op in enumerate(ops):
            nodes.append({"op": op, "inputs": [last], "outputs": [f"{names}{i}_{k}"]})
            last = f"{names}{i}_{k}"
    text = {**TINY, "nodes": nodes, "weights": [], "outputs": [{"name": last}]}
    graph = pipeline.load(json.dumps(text).encode())
    return union(graph, graph)


def test_one_node_more_is_one_change_whatever_the_names() -> None:
    a, b = side_of(_chain(40, "a"), "before"), side_of(_chain(40, "b", extra=17), "before")
    found = drawn(a, b)
    odd = [n for n in found["nodes"] if n["side"] != "both" and n["op"] not in ("input", "output")]
    assert [(n["op"], n["side"]) for n in odd] == [("Neg", "after")]


def test_ten_thousand_nodes_are_paired_and_drawn_in_time() -> None:
    a, b = side_of(_chain(10_000, "a"), "before"), side_of(_chain(10_000, "b", extra=5000), "before")
    began = time.process_time()
    found = drawn(a, b)
    assert sum(n["side"] == "both" for n in found["nodes"]) >= 10_000
    line = [[i, 1.0, 4] for i in range(10_000)]
    svg = timeline({"nodes": found["nodes"], "timeline": {"before": line, "after": line}})
    assert len(svg) < 200_000
    assert time.process_time() - began < 20  # a second here; a square of it would be minutes


def test_names_in_a_timeline_are_text() -> None:
    nodes = [{"op": "<script>", "name": '"><img src=x onerror=alert(1)>', "side": "both"}]
    svg = timeline({"nodes": nodes, "timeline": {"before": [[0, 9.0, 4]], "after": [[0, 9.0, 4]]}})
    assert "<script>" not in svg
    assert "<img" not in svg
    assert timeline({}) == ""
    assert "<svg" in timeline({"nodes": nodes, "timeline": {"before": [[0, 0.0, 0]], "after": []}})


def test_the_page_of_the_api_has_every_operation_and_the_examples(gallery: TestClient) -> None:
    page = gallery.get("/docs", follow_redirects=True).text
    assert page == gallery.get("/api").text
    for path, operations in gallery.get("/openapi.json").json()["paths"].items():
        for method, found in operations.items():
            assert f"<code>{method.upper()} {path}</code>" in page
            assert f'id="{found["operationId"]}"' in page
    for name in EXAMPLES.values():
        assert (FOLDER / name).read_text().splitlines()[-1][:40].replace('"', "&#34;").replace("'", "&#39;")[
            :20
        ] in page


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    made = start(ServiceSettings(data=tmp_path_factory.mktemp("pins"), port=free_port(), workers=1, poll=0.1))
    yield made
    stop(made)


_RUN = {".py": [sys.executable], ".sh": ["sh"], ".mjs": ["node"]}


@pytest.mark.parametrize("name", EXAMPLES.values())
def test_the_examples_run(name: str, live: Live, tmp_path: Path) -> None:
    command = _RUN[Path(name).suffix]
    if shutil.which(command[0]) is None or (name.endswith(".sh") and shutil.which("curl") is None):
        pytest.skip(f"{name} needs {command[0]} and curl")
    model, result = tmp_path / "model.json", tmp_path / "result.json"
    model.write_bytes(tiny(name))
    here = {**os.environ, "SUPEROPT_URL": live.url, "PYTHONPATH": str(Path(superopt.__file__).parents[1])}
    asked = [*command, str(FOLDER / name), str(model), str(result)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False, env=here)
    assert done.returncode == 0, done.stderr
    assert len(load(result).nodes) == 2
    assert "improved" in done.stdout


def test_the_commands_of_the_manual_are_about_addresses_that_there_are(live: Live) -> None:
    """Every path of docs/service.md is an operation or a page."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
    known = [re.sub(r"\{[^}]+\}", "[^/]+", p) for p in live.http.get("/openapi.json").json()["paths"]]
    named = set(re.findall(r"(?:GET|POST|PUT|DELETE) `?(/v1/[\w/{}-]+)", text)) | set(
        re.findall(r"localhost:8000(/[\w/-]+)", text)
    )
    assert len(named) > 15
    for path in named:
        plain = re.sub(r"\{[^}]+\}", "x", path).rstrip("/")
        assert any(re.fullmatch(k, plain) for k in known), path


def test_a_pinned_job_stays_and_has_a_short_link(live: Live, tmp_path: Path) -> None:
    answer = live.post(tiny("pinned"))
    until(lambda: live.succeeded(answer))
    job = answer.json()["id"]
    first = live.http.put(f"/v1/jobs/{job}/pin").json()
    assert live.http.put(f"/v1/jobs/{job}/pin").json() == first
    assert len(first["link"]) <= 16
    led = live.http.get(first["link"])
    assert (led.status_code, led.headers["location"]) == (303, f"/jobs/{job}")
    assert first["link"] in live.http.get(f"/jobs/{job}").text
    other = live.post(tiny("not pinned"))
    until(lambda: live.succeeded(other))
    retention = JobRetention(JobDatabase(live.settings.url), ServiceLimits(retention=-1.0))
    retention.expire()
    assert live.http.get(f"/v1/jobs/{job}").status_code == 200
    assert live.http.get(f"/v1/jobs/{other.json()['id']}").status_code == 404
    assert live.http.get(f"/v1/jobs/{job}/result").status_code == 200
    assert live.http.delete(f"/v1/jobs/{job}/pin").status_code == 204
    assert live.http.get(first["link"]).status_code == 404
    retention.expire()
    assert live.http.get(f"/v1/jobs/{job}").status_code == 404
    assert live.http.put(f"/v1/jobs/{job}/pin").status_code == 404


def test_the_page_of_a_job_that_came_to_nothing_is_a_page(live: Live) -> None:
    broken = live.post(b'{"format": "superopt.graph"}')
    until(lambda: live.state(broken) == "failed")
    waiting = live.post(tiny("to be cancelled"), time_limit=300)
    live.http.delete(waiting.headers["location"])
    for answer in (broken, waiting):
        assert live.http.get(f"/jobs/{answer.json()['id']}").status_code == 200
        refused = live.http.put(f"/v1/jobs/{answer.json()['id']}/pin")
        assert refused.status_code in (200, 409)  # the second may have been done before it was cancelled


def test_jobs_are_compared_with_models_of_the_corpus(live: Live) -> None:
    answer = live.post(tiny("compared"), GRAPH)
    until(lambda: live.succeeded(answer))
    job = answer.json()["id"]
    found = live.http.get("/v1/comparison", params={"a": job, "b": f"{job}/result"}).json()
    sides = Counter(n["side"] for n in found["nodes"] if n["op"] not in ("input", "output"))
    result = live.http.get(f"/v1/jobs/{job}/result").json()  # one of several that take as long
    assert sides["both"] + sides["before"] == len(TINY["nodes"])
    assert sides["both"] + sides["after"] == len(result["nodes"]) < len(TINY["nodes"])
    assert live.http.get("/compare", params={"a": job, "b": f"{job}/result"}).status_code == 200
