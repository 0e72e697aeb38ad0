"""The pages in a real browser: ``browse.mjs`` drives Debian's Chromium against a live service.

Screenshots are kept in ``build/screenshots``. Skipped where Chromium or Node is missing, or where Node's packages can
neither be found nor installed; the reason says what to do.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is an extra: pip install 'superopt[server]'")
pytest.importorskip("httpx", reason="pip install httpx")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "server"))
from service_testing import GRAPH, free_port, start, stop, until  # noqa: E402

from superopt.cost import profile_names  # noqa: E402
from superopt.gate import write_run  # noqa: E402
from superopt.report.corpus import CorpusModelResult, CorpusRun  # noqa: E402
from superopt.rules import load_library  # noqa: E402
from superopt.server import examples  # noqa: E402
from superopt.server.settings import ServiceLimits, ServiceSettings  # noqa: E402

WEB = ROOT / "server" / "web"
TINY = ROOT / "corpus" / "tiny"
SCREENSHOTS = ROOT / "build" / "screenshots"
EXAMPLES = ("repvgg_a0", "lstm", "nasnet_a")
SCENARIOS = (
    "upload", "drop", "problems", "cancel", "compare", "thousand", "rules", "plain", "corpus", "gallery", "hostile",
    "keyboard", "accessible", "look", "seen", "playground", "api",
)  # fmt: skip


def chromium() -> str:
    """Chromium's path, or a skip."""
    for name in (os.environ.get("SUPEROPT_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    pytest.skip("no Chromium here: apt-get install chromium, or set SUPEROPT_CHROMIUM to its path")


@pytest.fixture(scope="session")
def built() -> str:
    """The pages, built from their sources, and what drives them; the path of Chromium."""
    browser = chromium()
    if shutil.which("npm") is None:
        pytest.skip("no Node here: apt-get install nodejs npm")
    installed = WEB / "node_modules" / "playwright-core"
    made = subprocess.run(["make", "-C", str(ROOT), "web"], capture_output=True, text=True, check=False)
    if made.returncode and not installed.is_dir():
        pytest.skip(f"Node's packages cannot be installed here: {made.stderr.strip()[-300:]}")
    assert made.returncode == 0, made.stderr
    return browser


def shapes(count: int) -> dict[str, Any]:
    """A graph of ``3 * count`` nodes of which every third is superfluous."""
    nodes, last = [], "x"
    for i in range(count):
        nodes += [{"op": "Relu", "inputs": [last], "outputs": [f"a{i}"]},
                  {"op": "Relu", "inputs": [f"a{i}"], "outputs": [f"b{i}"]},
                  {"op": "Add", "inputs": [f"b{i}", "w"], "outputs": [f"c{i}"]}]  # fmt: skip
        last = f"c{i}"
    return {"format": "superopt.graph", "version": 1, "name": "thousand", "opset": {"": 21},
            "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}],
            "weights": [{"name": "w", "dtype": "float32", "shape": [8], "random": {"seed": 1, "scale": 0.1}}],
            "nodes": nodes, "outputs": [{"name": last}]}  # fmt: skip


def hostile() -> dict[str, Any]:
    evil = "<img src=x onerror=alert(1)>"
    node = {"inputs": ["x"], "outputs": [evil + "a"], "name": evil, "op": "Relu"}
    again = {"inputs": [evil + "a"], "outputs": [evil + "y"], "name": f"{evil}'\"", "op": "Relu"}
    last = {"inputs": [evil + "y"], "outputs": ["y"], "name": "</script>", "op": "Exp"}
    return {"format": "superopt.graph", "version": 1, "name": evil, "opset": {"": 21},
            "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}], "nodes": [node, again, last],
            "outputs": [{"name": "y"}]}  # fmt: skip


def folding() -> str:
    """A rule that folds a BatchNormalization into a Conv."""
    library = load_library()
    return next(i for i in library if {"Conv", "BatchNormalization"} <= library[i].operators)


def corpus(folder: Path) -> Path:
    """The tiny models under the names of the true ones, and a recorded run."""
    folder.mkdir()
    entry = '[[model]]\nname = "{}"\nfamily = "f"\nparameters = {}\nnodes = 2\nwhy = "to be tried"\n'
    (folder / "manifest.toml").write_text("".join(entry.format(n, 9 - i) for i, n in enumerate(EXAMPLES)))
    for name in EXAMPLES:
        shutil.copy(TINY / f"{name}.json", folder)
    (folder / "results").mkdir()
    shutil.copy(examples() / "results" / "lstm.json.gz", folder / "results")
    rows = (
        CorpusModelResult("corpus/repvgg_a0.json", "d", "improved", 100.0, 50.0, 1.0, (2, 1), "passed", {folding(): 3}),
    )
    write_run(folder / "baseline.json", CorpusRun("profile:recorded", "p", "d", "r", "2026-01-01", "1", {}, {}, rows))
    return folder


@pytest.fixture(scope="session")
def facts(built: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A service with some jobs done, and a file that says where they are."""
    folder = tmp_path_factory.mktemp("browser")
    settings = ServiceSettings(
        data=folder / "data",
        port=free_port(),
        workers=2,
        corpus=corpus(folder / "corpus"),
        poll=0.1,
        limits=ServiceLimits(search_seconds=20.0),
    )
    live = start(settings)
    try:
        sent = {
            "repvgg": (TINY / "repvgg_a0.json").read_bytes(), "thousand": json.dumps(shapes(334)).encode(),
            "hostile": json.dumps(hostile()).encode(),
        }  # fmt: skip
        target = f"profile:{profile_names()[0]}" if profile_names() else "cpu"  # recorded costs: the same result always
        answers = {name: live.post(body, GRAPH, time_limit=120, target=target) for name, body in sent.items()}
        for answer in answers.values():
            until(lambda answer=answer: live.succeeded(answer), 300)
        answers["long"] = live.post((TINY / "nasnet_a.json").read_bytes(), GRAPH, time_limit=300)
        jobs = {name: answer.json()["id"] for name, answer in answers.items()}
        path = folder / "facts.json"
        told = {"base": live.url, "web": str(WEB), "chromium": built, "screenshots": str(SCREENSHOTS), "jobs": jobs,
                "model": str(TINY / "lstm.json"), "load": os.getloadavg()[0], "rule": folding()}  # fmt: skip
        path.write_text(json.dumps(told))
        cancelled = f"/v1/jobs/{jobs['long']}"
        yield path
        live.http.delete(cancelled)
    finally:
        stop(live)


@pytest.fixture(scope="session")
def browser(facts: Path) -> Iterator[subprocess.Popen[str]]:
    """One browser for all scenarios."""
    command = ["node", str(Path(__file__).with_name("browse.mjs")), str(facts)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow  # `make browser` and `make test-slow` run it, where Chromium is installed
@pytest.mark.parametrize("scenario", sorted(SCENARIOS, key=lambda s: s != "cancel"))
def test_page(scenario: str, browser: subprocess.Popen[str]) -> None:
    assert browser.stdin is not None
    assert browser.stdout is not None
    print(scenario, file=browser.stdin, flush=True)
    assert select.select([browser.stdout], [], [], 300)[0], "the browser does not answer"
    error = json.loads(browser.stdout.readline() or '"the browser ended"')
    assert not error, error[-4000:]


def test_every_scenario_is_run() -> None:
    text = Path(__file__).with_name("browse.mjs").read_text()
    named = {line.split("async ")[1].split("(")[0] for line in text.splitlines() if line.startswith("  async ")}
    assert named == set(SCENARIOS)
