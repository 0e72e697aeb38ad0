"""A model is looked at before it is optimized: facts, a drawing, and problems as a job has them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape

import pytest
from service_testing import GRAPH, TINY, tiny
from starlette.testclient import TestClient

EVIL = '"><img src=x onerror=alert(1)></pre><script>alert(2)</script>'


def test_a_model_is_looked_at_without_a_job(client: TestClient) -> None:
    answer = client.post("/v1/inspect", content=tiny("seen"), headers={"Content-Type": GRAPH})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["format"], found["nodes"], found["operators"]) == ("superopt.inspection", 3, {"Relu": 2, "Add": 1})
    sides = {node["side"] for node in found["comparison"]["nodes"]}
    assert sides == {"both"}
    assert found["comparison"]["regions"] == []
    service = client.app.state.service  # type: ignore[attr-defined]
    assert service.store.counts() == {}
    assert list(service.blobs.work.iterdir()) == []


def test_the_page_has_the_drawing_and_the_tables(client: TestClient) -> None:
    answer = client.post("/inspect", files={"graph": ("mine.json", tiny("page"))})
    assert answer.status_code == 200
    assert "<h1>mine.json</h1>" in answer.text
    [drawing] = re.findall(r'<pre hidden id="drawing">(.*?)</pre>', answer.text, re.DOTALL)
    assert len(json.loads(unescape(drawing))["nodes"]) == 5
    assert 'data-comparison="#drawing"' in answer.text
    assert client.get("/inspect", follow_redirects=False).headers["location"] == "/"


def test_names_stay_names(client: TestClient) -> None:
    nodes = [{"op": "Relu", "inputs": ["x"], "outputs": [EVIL], "name": EVIL},
             {"op": "Exp", "inputs": [EVIL], "outputs": ["y"]}]  # fmt: skip
    document = {**TINY, "name": EVIL, "nodes": nodes, "weights": []}
    page = client.post("/inspect", files={"graph": (f"{EVIL}.json", json.dumps(document))}).text
    assert "<img" not in page
    assert "<script>alert" not in page
    assert page.count("</pre>") == 1


@pytest.mark.parametrize(
    ("body", "media", "status", "said"),
    [
        (b"garbage", "application/octet-stream", 422, "ONNX"), (b"", GRAPH, 422, "empty"),
        (json.dumps({**TINY, "nodes": [{"op": "Relu", "inputs": ["ghost"], "outputs": ["y"]}]}).encode(), GRAPH, 422,
         "ghost"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_problem(body: bytes, media: str, status: int, said: str, client: TestClient) -> None:
    answer = client.post("/v1/inspect", content=body, headers={"Content-Type": media})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


def test_a_form_without_a_model_says_what_to_do(client: TestClient) -> None:
    answer = client.post("/inspect", files={"example": (None, "")})
    assert answer.status_code == 422
    assert "Choose a file, or one of the examples" in answer.text


def test_looking_at_a_model_loads_no_optimizer() -> None:
    """The optimizer takes a second of processor time to import, and facts need none of it."""
    code = (
        "import sys, superopt.report.inspection, superopt.server.jobs.child, superopt.server.views.union_graph\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('superopt.')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "formats" in done.stdout.split()
    assert not {"pipeline", "passes", "regions", "egraph", "verifier", "discovery"}.intersection(done.stdout.split())
