"""The corpus gate: what it judges, whom it blames, and what it writes. No test here names a rule of the library."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from sampling import slow
from typer.testing import CliRunner

from superopt.cli import app
from superopt.cost import DeviceProfile, MeasurementRecord, ProfileCostModel, read_profile, write_profile
from superopt.cost.measurement_record import MeasurementKey
from superopt.fleet import TaskLost, WorkerPool
from superopt.formats import save
from superopt.frontend import GraphBuilder
from superopt.gate import CorpusSettings, models_of, read_run
from superopt.gate.corpus_model import CorpusModelTask
from superopt.gate.counterfactual_costs import CounterfactualCosts
from superopt.gate.culprit import minimal, why_slower
from superopt.gate.judge import run_all
from superopt.ir.errors import InvalidModel, UsageError
from superopt.ir.graph import Graph
from superopt.passes import SearchOptions, search
from superopt.pipeline import optimization
from superopt.pipeline.options import Options
from superopt.report.corpus import Culprit
from superopt.rules import Rule, RuleLibrary, load_library, parse_rule

OPERATORS = {"MatMul": 0.02, "Gemm": 0.5, "Add": 0.5, "Mul": 0.5, "Relu": 0.5, "Concat": 0.2, "Split": 0.2}


def profile(path: Path, factors: Mapping[str, float] | None = None) -> Path:
    """A recorded profile by arithmetic: what is not in it is interpolated from it, everywhere alike."""
    records = []
    for op, per_flop in OPERATORS.items():
        for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24):
            ns = (300 + per_flop * size) * (factors or {}).get(op, 1.0)
            key = MeasurementKey(op=op, attrs="{}", dtype="float32", shapes=(f"float32[{size}]",))
            records.append(MeasurementRecord(key, ns, ns, 0.01, 0, size, size))
    header = {"device": "arithmetic", "cache_bytes": 1 << 25, "dispatch_ns": 100.0, "threads": 1, "runtime": "none"}
    write_profile(path, header, records)
    return path


def products(name: str, width: int) -> Graph:
    """Two linear layers with nothing between them: one does it. And a ReLU, so that something must stay."""
    builder = GraphBuilder(name)
    x = builder.input("x", "float32", [32, width])
    y = builder.op("MatMul", x, builder.weight("a", (width, width), scale=0.1))
    y = builder.op("MatMul", y, builder.weight("b", (width, width), scale=0.1))
    builder.output(builder.op("Relu", y), "y", shape=[32, width])
    return builder.build()


def branches(name: str, width: int) -> Graph:
    """Two products of one input that are summed: one product does it."""
    builder = GraphBuilder(name)
    x = builder.input("x", "float32", [32, width])
    left = builder.op("MatMul", x, builder.weight("a", (width, width), scale=0.1))
    right = builder.op("MatMul", x, builder.weight("b", (width, width), scale=0.1))
    builder.output(builder.op("Add", left, right), "y", shape=[32, width])
    return builder.build()


class Corpus:
    """A folder with models, profile and settings, and the command line on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "models").mkdir()
        save(products("products", 64), folder / "models" / "products.json")
        save(branches("branches", 64), folder / "models" / "branches.json")
        profile(folder / "p.gz")
        (folder / "superopt.toml").write_text(
            '[corpus]\nmodels = ["models"]\nbaseline = "baseline.json"\nworkers = 1\n'
            f'profile = "{folder / "p.gz"}"\nthreshold = 0.01\n'
        )

    def run(self, command: str, *flags: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["corpus", command, *flags], catch_exceptions=True)
        found = getattr(done.exception, "exit_code", None) or (done.exception.code if done.exception else 0)  # type: ignore[union-attr]
        assert found == code, (found, done.output, done.exception)
        return done.output


@pytest.fixture(scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The rules that the library applies to these models; with them alone, these tests are quick."""
    prices = ProfileCostModel(read_profile(profile(tmp_path_factory.mktemp("profile") / "p.gz")))
    rules = [r for r in load_library().admitted if r.operators <= OPERATORS.keys()]  # of others nothing has a price
    found = [
        search(graph, rules, prices, SearchOptions(time_limit=60.0, cache=False))
        for graph in (products("products", 64), branches("branches", 64))
    ]
    return frozenset(a.rule for f in found for a in f.applied if a.rule != "fold")


@pytest.fixture
def corpus(tmp_path: Path, _cache: Path, used: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("SUPEROPT_CACHE", str(_cache))
    monkeypatch.setattr(optimization, "load_library", library_of(used.__contains__))
    monkeypatch.chdir(tmp_path)
    return Corpus(tmp_path)


def library_of(keep: Callable[[str], bool]) -> Callable[..., RuleLibrary]:
    """A loader of the library with some of its rules."""

    def load(*args: object, **named: object) -> RuleLibrary:
        library = load_library(*args, **named)  # type: ignore[arg-type]
        return replace(library, rules={k: r for k, r in library.rules.items() if keep(k)})

    return load


def needed_rule(corpus: Corpus, model: str, used: frozenset[str]) -> str:
    """A rule among these without which the model costs more than its baseline says, found by trying."""
    baseline = read_run(corpus.folder / "baseline.json")
    known = baseline.row(model)
    assert known is not None
    rules = [r for r in load_library().admitted if r.id in used]
    task = CorpusModelTask(model, corpus.folder / model, Options(target=baseline.target, time_limit=60.0))
    lab = CounterfactualCosts({model: task}, tuple(rules), float("inf"))
    for name in sorted(used):
        if lab.cost(model, [r for r in rules if r.id != name]) > known.after_us * 1.02:
            return name
    raise AssertionError(f"{model} needs none of {used}")


def test_update_then_compare_finds_nothing(corpus: Corpus) -> None:
    corpus.run("update")
    text = corpus.run("compare")
    assert "no regression" in text
    baseline = read_run(corpus.folder / "baseline.json")
    assert [r.model for r in baseline.rows] == ["models/branches.json", "models/products.json"]
    assert all(r.after_us < r.before_us and r.check == "passed" for r in baseline.rows)
    assert all(set(r.rules) - {"fold"} <= set(baseline.texts) for r in baseline.rows)
    assert [len(h) for h in baseline.history.values()] == [1, 1]
    first = (corpus.folder / "baseline.json").read_text()
    corpus.run("update")  # same revision, same costs: no news, and the same file but for its date
    undated = [re.sub(r'"date": "[^"]*"', "", t) for t in (first, (corpus.folder / "baseline.json").read_text())]
    assert undated[0] == undated[1]


def test_without_a_baseline_only_what_is_wrong_counts_and_the_first_is_kept_beside_the_models(corpus: Corpus) -> None:
    """``superopt corpus compare models/*.onnx``, where nobody has set anything up."""
    settings = corpus.folder / "superopt.toml"
    settings.write_text(settings.read_text().replace('baseline = "baseline.json"\n', ""))
    models = [f"models/{name}.json" for name in ("branches", "products")]
    text = " ".join(corpus.run("compare", *models).split())
    assert "there is no baseline, so only wrong results and failures count" in text
    assert f"superopt corpus update {' '.join(models)}" in text
    corpus.run("update", *models)
    assert (corpus.folder / "models" / "baseline.json").is_file()
    assert "no regression" in corpus.run("compare", *models)
    assert "no regression" in corpus.run("compare", *models, "models/baseline.json")  # as models/*.json names it
    assert "no regression" in corpus.run("compare", "models/*.json")


def test_a_rule_that_is_gone_is_named(
    corpus: Corpus, used: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """In a library without a second way to the same result: one of the rules that were used is removed."""
    model = "models/products.json"
    corpus.run("update", model)
    rule = needed_rule(corpus, model, used)
    monkeypatch.setattr(optimization, "load_library", library_of(lambda name: name in used - {rule}))
    corpus.run("compare", model, "--json", "found.json", code=6)
    found = json.loads((corpus.folder / "found.json").read_text())["verdict"]["findings"]
    [slower] = [f for f in found if f["kind"] == "regression"]
    assert slower["model"] == model
    assert slower["culprit"]["kind"] == "rule removed"
    assert slower["culprit"]["names"] == [rule]
    # with it back, nothing is wrong any more
    monkeypatch.setattr(optimization, "load_library", library_of(lambda name: name in used))
    assert "no regression" in corpus.run("compare", model)


def test_a_library_that_changed_is_not_said_to_be_what_it_was(corpus: Corpus) -> None:
    """Where nothing that is put back explains the cost: the code is not to blame before the rules."""
    corpus.run("update")
    then = read_run(corpus.folder / "baseline.json")
    now = replace(then, library=dict(list(then.library.items())[1:]), revision="later")
    lab: Any = SimpleNamespace(rules=(), over=False, cost=lambda *_: inf)
    row = replace(then.rows[0], after_us=2 * then.rows[0].after_us)
    found = why_slower(row, then.rows[0], 0.02, now, then, lab)
    assert found.kind == "unknown"
    assert "1 rules of the baseline's are gone" in found.evidence
    assert why_slower(row, then.rows[0], 0.02, replace(now, library=then.library), then, lab).kind == "code"


def test_an_operator_that_costs_twice_as_much_is_named(corpus: Corpus) -> None:
    corpus.run("update")
    dearer = profile(corpus.folder / "dearer.gz", {"MatMul": 2.0})
    text = corpus.run("compare", "--target", f"profile:{dearer}", "--json", "found.json", code=6)
    findings = json.loads((corpus.folder / "found.json").read_text())["verdict"]["findings"]
    culprits = [f["culprit"] for f in findings if f["kind"] == "regression"]
    assert len(culprits) == 2
    assert all(c["kind"] == "operator cost" and c["names"] == ["MatMul"] for c in culprits)
    times = re.search(r"([\d.]+) times", culprits[0]["evidence"])
    assert times is not None
    assert 1.5 < float(times.group(1)) < 2.1  # twice, but for what an operator costs that does nothing
    assert "the baseline's of" in text


def test_a_wrong_rule_is_caught_by_the_check_and_named(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.run("update")
    wrong = parse_rule(
        {
            "id": "planted",
            "forall": {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"},
            "lhs": ["Add(MatMul(x, a), MatMul(x, b))"],
            "rhs": ["MatMul(x, Sub(a, b))"],
        }
    )
    honest = RuleLibrary.admitted

    def admitted(library: RuleLibrary) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = honest.__get__(library)
        return (*(r for r in rules if not {"Add", "Sum"} & _operators(r)), wrong)

    monkeypatch.setattr(RuleLibrary, "admitted", property(admitted))
    monkeypatch.setattr(RuleLibrary, "floats", lambda self, mode="standard": None)  # as if it had verdicts, too
    corpus.run("compare", "--json", "found.json", code=5)
    found = json.loads((corpus.folder / "found.json").read_text())["verdict"]["findings"]
    [bad] = [f for f in found if f["kind"] == "wrong"]
    assert bad["model"] == "models/branches.json"
    assert bad["culprit"]["kind"] == "wrong rule"
    assert bad["culprit"]["names"] == ["planted"]
    assert "it is false at" in bad["culprit"]["evidence"]
    assert corpus.run("run", code=5)
    before = (corpus.folder / "baseline.json").read_text()
    corpus.run("update", code=5)
    assert (corpus.folder / "baseline.json").read_text() == before


def _operators(rule: Rule) -> set[str]:
    return set(re.findall(r"\b([A-Z]\w+)\(", str([*map(str, rule.lhs), *map(str, rule.rhs)]))) | set(
        re.findall(r"op='(\w+)'", repr((rule.lhs, rule.rhs)))
    )


def test_new_missing_broken_and_changed_models_are_told(corpus: Corpus) -> None:
    corpus.run("update")
    models = corpus.folder / "models"
    (models / "products.json").unlink()
    (models / "broken.onnx").write_bytes(b"garbage")
    save(branches("branches", 96), models / "branches.json", force=True)
    save(products("other", 32), models / "other.json")
    corpus.run("compare", "--json", "found.json", "--junit", "found.xml", code=6)
    found = json.loads((corpus.folder / "found.json").read_text())["verdict"]["findings"]
    kinds = {(f["kind"], f["model"]) for f in found}
    assert {
        ("missing", "models/products.json"), ("failed", "models/broken.onnx"), ("new", "models/other.json"),
        ("new", "models/broken.onnx"), ("regression", "models/branches.json"),
    } <= kinds  # fmt: skip
    [changed] = [f for f in found if f["kind"] == "regression"]
    assert changed["culprit"]["kind"] == "model"
    assert "MatMul" in changed["culprit"]["evidence"]
    suite = ET.parse(corpus.folder / "found.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "5",
        "2",
        "1",
        "1",
    )


def test_every_output_is_what_its_readers_expect(corpus: Corpus) -> None:
    corpus.run("update")
    dearer = profile(corpus.folder / "dearer.gz", {"MatMul": 2.0})
    flags = ["--target", f"profile:{dearer}", "--markdown", "c.md", "--junit", "c.xml", "--sarif", "c.sarif"]
    corpus.run("compare", *flags, code=6)
    text = (corpus.folder / "c.md").read_text()
    assert text.startswith("## ❌")
    assert "**operator cost: MatMul**" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables if "models/" in line and "regression" not in line}) == 1
    log = json.loads((corpus.folder / "c.sarif").read_text())
    jsonschema.validate(log, SARIF)
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    places = [
        r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"] if r["locations"]
    ]
    assert set(places) == {"models/branches.json", "models/products.json"}
    root = ET.parse(corpus.folder / "c.xml").getroot()
    assert root.tag == "testsuites"
    cases = root.findall("testsuite/testcase")
    assert {c.get("name") for c in cases} == {"branches", "products", "all models"}
    assert all(c.get("classname") and float(str(c.get("time"))) >= 0 for c in cases)
    assert [f.get("type") for f in root.iter("failure")] == ["regression", "regression", "total"]


# What SARIF 2.1.0 (OASIS, errata 01) demands of the parts that are written here.
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_PLACE = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "properties": {
                        "uri": {"type": "string", "format": "uri-reference"},
                        "uriBaseId": {"type": "string"},
                    },
                    "additionalProperties": False,
                },
                "region": {"type": "object", "properties": {"startLine": {"type": "integer", "minimum": 1}}},
            },
            "additionalProperties": False,
        }
    },
}
_RESULT = {
    "type": "object",
    "required": ["message"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": -1},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": _TEXT,
        "locations": {"type": "array", "items": _PLACE},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "properties": {"type": "object"},
    },
}
_DRIVER = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "informationUri": {"type": "string", "format": "uri"},
        "rules": {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": "object", "required": ["id"], "properties": {"shortDescription": _TEXT}},
        },
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {"type": "object", "required": ["driver"], "properties": {"driver": _DRIVER}},
                    "automationDetails": {"type": "object", "properties": {"id": {"type": "string"}}},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {"type": "array", "items": {"type": "object", "required": ["executionSuccessful"]}},
                    "results": {"type": "array", "items": _RESULT},
                },
            },
        },
    },
}


def test_thresholds_by_model_and_for_all(corpus: Corpus) -> None:
    corpus.run("update")
    dearer = profile(corpus.folder / "dearer.gz", {"MatMul": 1.5})
    flags = ["--target", f"profile:{dearer}"]
    with (corpus.folder / "superopt.toml").open("a") as file:
        file.write("total_threshold = 9.0\n[corpus.thresholds]\n'*' = 0.9\n")
    corpus.run("compare", *flags)
    with (corpus.folder / "superopt.toml").open("a") as file:
        file.write("'prod*' = 0.01\n")
    text = corpus.run("compare", *flags, code=6)
    assert text.count("more than the") == 1
    corpus.run("compare", *flags, "--total-threshold", "0.01", code=6)


def test_a_recorded_run_is_judged_without_running(corpus: Corpus) -> None:
    corpus.run("update")
    corpus.run("run", "--json", "run.json")
    assert "no regression" in corpus.run("compare", "--run", "run.json")


@pytest.mark.parametrize("why", ["its process ended with 9", "it took longer than 5 s"])
def test_a_worker_that_is_lost_takes_only_its_model(corpus: Corpus, why: str) -> None:
    """How a fleet loses a process, tests/fleet shows; here it says so, and each model becomes a row."""

    def lost(_: bytes) -> bytes:
        raise TaskLost(why)

    options = Options(target="profile:none", time_limit=1.0)
    tasks = [CorpusModelTask(f"{n}.json", corpus.folder / f"{n}.json", options) for n in "ab"]
    with ThreadPoolExecutor(2) as threads, WorkerPool(threads, size=lambda: 2, run=lost) as fleet:
        rows = run_all(tasks, fleet=fleet)
    assert [(r.model, r.status, r.exit_code) for r in rows] == [("a.json", "failed", 7), ("b.json", "failed", 7)]
    assert all(why in r.error for r in rows)


@pytest.mark.parametrize("workers", ["1", slow("2")])
def test_a_run_that_was_cut_short_goes_on(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    if workers != "1":
        monkeypatch.setattr(optimization, "load_library", load_library)  # which the workers have
    given = ("--resume", "kept", "--workers", workers)
    corpus.run("run", *given, "--total-limit", "0", code=7)
    corpus.run("run", *given, "--json", "first.json")
    judging = sys.modules["superopt.gate.judge"]
    monkeypatch.setattr(judging, "run_all", lambda todo, **_: pytest.fail("all was done") if todo else ())
    corpus.run("run", *given, "--json", "second.json")
    first, second = (json.loads((corpus.folder / f"{n}.json").read_text()) for n in ("first", "second"))
    assert first["models"] == second["models"]


def test_workers_and_this_process_find_the_same(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimization, "load_library", load_library)  # which the workers have
    corpus.run("run", "--json", "one.json")
    corpus.run("run", "--workers", "2", "--json", "two.json")
    one, two = (json.loads((corpus.folder / f"{n}.json").read_text()) for n in ("one", "two"))
    assert one["models"] == two["models"]


@pytest.mark.parametrize(
    "text", ["threshold = 'much'", "models = 3", "colour = 1", "thresholds = 1", "check = 1", "workers = -1"]
)
def test_bad_settings_are_usage_errors(tmp_path: Path, text: str) -> None:
    import tomllib

    with pytest.raises(UsageError):
        CorpusSettings.read(tomllib.loads(text), tmp_path)


def test_models_are_found_by_file_folder_and_pattern(corpus: Corpus) -> None:
    root = corpus.folder
    (root / "models" / "deep").mkdir()
    save(products("deep", 8), root / "models" / "deep" / "d.json")
    (root / "models" / "baseline.json").write_text("{}")

    def names(*models: str) -> list[str]:
        return list(models_of(CorpusSettings(root=root, models=models)))

    assert names("models") == ["models/branches.json", "models/products.json"]
    assert names("models/**/d*.json") == ["models/deep/d.json"]
    assert names("models/products.json", "models/products.json") == ["models/products.json"]
    with pytest.raises(UsageError):
        names("models/none*.json")
    with pytest.raises(UsageError):
        names()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "superopt.corpus", "version": 2}', "null"])
def test_a_damaged_baseline_is_an_invalid_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(InvalidModel):
        read_run(tmp_path / "b.json")
    with pytest.raises(UsageError):
        read_run(tmp_path / "none.json")


def test_minimal_is_minimal() -> None:
    tried = []

    def enough(some: object) -> bool:
        tried.append(some)
        return {3, 11} <= set(some)  # type: ignore[call-overload]

    assert minimal(range(20), enough) == [3, 11]
    assert minimal(range(64), lambda some: 40 in some) == [40]
    assert len(tried) < 40


def test_the_profile_of_these_tests_is_one(tmp_path: Path) -> None:
    found = read_profile(profile(tmp_path / "p.gz"))
    assert isinstance(found, DeviceProfile)
    assert len(found.records) == 5 * len(OPERATORS)


def test_a_culprit_that_was_not_narrowed_down_is_one_readable_line() -> None:
    assert str(Culprit("rule added", ("a", "b"), "")) == "rule added: a, b"
    assert str(Culprit("rule added", tuple(f"r{i}" for i in range(200)), "")).endswith("r7 and 192 more")
