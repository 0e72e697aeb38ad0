"""What the corpus page says of measurements."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from superopt.rules import load_library
from superopt.server import examples
from superopt.server.app import create_app
from superopt.server.settings import ServiceSettings
from superopt.server.views.recorded_corpus import RecordedCorpus


@pytest.mark.parametrize(
    ("ratio", "spread", "shown"),
    [
        (0.998, 0.037, ""),
        (0.971, 0.03, ""),
        (0.96, 0.03, "good"),
        (0.5, 0.1, "good"),
        (1.05, 0.04, "worse"),
        (1.0, 0.0, ""),
    ],
)
def test_noise_is_not_shown_as_a_gain(ratio: float, spread: float, shown: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "bench").mkdir(parents=True)
    entry = 'name = "one"\nfamily = "f"\nparameters = 5\nnodes = 2\nwhy = "because"\n'
    (corpus / "manifest.toml").write_text(f"[[model]]\n{entry}")
    row = {"model": "corpus/one.json", "ratio": ratio, "spread": spread, "before_ms": 2.0, "after_ms": 2.0 * ratio}
    (corpus / "bench" / "run.json").write_text(json.dumps([row]))
    with TestClient(
        create_app(ServiceSettings(data=tmp_path / "data", corpus=corpus)), base_url="http://localhost"
    ) as client:
        page = client.get("/corpus").text
    assert f'<td class="n {shown}">{ratio:.3f} ' in page
    assert ("no difference" in page) == (not shown)


def test_the_gallery_of_an_installation_has_every_model_and_what_was_measured() -> None:
    """What ``superopt serve`` shows without a checkout: links in a checkout, files in a wheel."""
    gallery, corpus = examples(), Path(__file__).resolve().parents[2] / "corpus"
    models = {m["name"] for m in tomllib.loads((corpus / "manifest.toml").read_text())["model"]}
    assert {path.stem for path in gallery.glob("*.json")} == models
    assert (gallery / "manifest.toml").read_text() == (corpus / "manifest.toml").read_text()
    recorded = RecordedCorpus(gallery)
    assert set(recorded.measured) | set(recorded.failed) == models
    assert {"onnxsim", "onnxslim"} <= set(recorded.tools)
    assert recorded.runs


def test_a_result_that_was_judged_wrong_is_shown_as_such(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "bench").mkdir(parents=True)
    (corpus / "manifest.toml").write_text(
        "".join(f'[[model]]\nname = "{n}"\nfamily = "f"\nparameters = 5\nnodes = 2\nwhy = "w"\n' for n in ("a", "b"))
    )
    ours = {"status": "ok", "ratio": 0.5, "spread": 0.01, "ms": 1.0}
    rows = [{"model": "corpus/a.json", "before_ms": 2.0, "tools": {"superopt": ours}},
            {"model": "corpus/b.json", "before_ms": 2.0, "tools": {"superopt": {"status": "wrong"}}}]  # fmt: skip
    machine = {"device": "d", "threads": 1, "runtime": "r"}
    made = {"format": "superopt.bench", "machine": machine, "date": "2026-11-27", "tools": {}, "rows": rows}
    (corpus / "bench" / "run.json").write_text(json.dumps(made))
    with TestClient(
        create_app(ServiceSettings(data=tmp_path / "data", corpus=corpus)), base_url="http://localhost"
    ) as client:
        page = client.get("/corpus").text
    assert page.count('<td class="n worse">wrong</td>') == 1


def test_other_tools_stand_beside_with_their_noise(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path / "data", corpus=examples())
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        page = client.get("/corpus").text
        assert 'aria-label="Models"' in page
        for tool in ("onnxsim", "onnxscript"):
            assert f">{tool} ÷</th>" in page
        assert "<option" in client.get("/").text


def test_a_run_of_another_library_says_so(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "baselines").mkdir(parents=True)
    (corpus / "manifest.toml").write_text((examples() / "manifest.toml").read_text())
    run = json.loads((examples() / "baselines" / "tiny.json").read_text())
    today = dict.fromkeys(load_library().rules, "digest")
    for library, said in (
        (today, "The library is the same today."),
        ({**dict(list(today.items())[3:]), "gone-1234": "digest"},
         "The library has changed since: 1 of its rules are gone, 3 rules are new."),
    ):  # fmt: skip
        (corpus / "baselines" / "run.json").write_text(json.dumps({**run, "library": library}))
        with TestClient(
            create_app(ServiceSettings(tmp_path / "data", corpus=corpus)), base_url="http://localhost"
        ) as client:
            assert said in client.get("/corpus").text


def test_a_revision_with_uncommitted_changes_is_not_shown(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "baselines").mkdir(parents=True)
    (corpus / "manifest.toml").write_text((examples() / "manifest.toml").read_text())
    run = json.loads((examples() / "baselines" / "tiny.json").read_text())
    for revision, shown in (("abc1234-dirty", False), ("abc1234", True)):
        (corpus / "baselines" / "run.json").write_text(json.dumps({**run, "revision": revision}))
        with TestClient(
            create_app(ServiceSettings(tmp_path / "data", corpus=corpus)), base_url="http://localhost"
        ) as client:
            page = client.get("/corpus").text
        assert "dirty" not in page
        assert ("abc1234" in page) == shown
