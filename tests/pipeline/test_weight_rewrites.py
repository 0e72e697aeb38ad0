"""Rewrites by the elements of weights in an optimisation: checked, priced, reported, and left out on request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sampling import slow

import superopt
from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel, NotEquivalent, UsageError
from superopt.ir.graph import Graph
from superopt.passes.weights import by_values
from superopt.pipeline import weight_rewrites
from superopt.report import Report
from superopt.rules import load_library
from superopt.runtime import onnx_runtime
from superopt.verifier.equivalence.graphs import verify
from superopt.verifier.weights.certificate_files import MANIFEST, check_folder, write_folder
from superopt.verifier.weights.claim_checker import check_values
from tests.passes.value_models import MODELS, Drawn
from tests.program.test_constant_nodes import held

PROFILE = "profile:cpu-epyc-2core"


# Without most rules, which are compiled here for a mode that ships no compiled ones: for seconds, of all.
STRICT = {"floats": "strict", "disable": tuple(sorted(set(load_library().families) - {"algebra"}))}


def optimised(graph: Graph, **settings: object) -> tuple[Graph, Report]:
    options = superopt.Options(target=PROFILE, time_limit=None, sizes={"N": 1, "S": 16})
    found = superopt.optimize(graph, options=replace(options, **settings))  # type: ignore[arg-type]
    return found.graph, found.report


def wide(dead: int, rank: int | None = None, *, whole: bool = False) -> Graph:
    """Dense layers, half of whose neurons may be dead, and the last of whose weights may be of low rank."""
    d, b = Drawn(1), GraphBuilder("wide")
    x = b.input("x", "float32", (8, 256))
    w, last = d.normal(256, 512), d.normal(512, 256)
    w[:, d.some(512, dead)] = 0
    if rank is not None and whole:
        base = d.rng.integers(-3, 4, (512, rank)).astype(np.float32)
        last = np.concatenate([base, base @ d.rng.integers(-1, 2, (rank, 256 - rank)).astype(np.float32)], axis=1)
    elif rank is not None:
        last = d.normal(512, rank) @ d.normal(rank, 256)
    y = b.op("Relu", b.op("MatMul", x, b.constant(w)))
    b.output(b.op("Relu", b.op("MatMul", y, b.constant(last))), "y")
    return b.build()


def test_dead_neurons_are_left_out_checked_and_reported() -> None:
    graph, report = optimised(wide(200))
    assert report.check.verdict == "passed"
    assert report.values is not None
    assert report.values.removed == 400  # of the product and of the activation
    assert report.values.weight_elements == (262144, 159744)
    assert report.values.exact
    assert report.cost.after_us < 0.75 * report.cost.before_us
    assert any("are 0" in c for c in report.values.claims)
    assert report.json()["values"]["checked"].startswith("2 claims")
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    old, new = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), {"x": x})["y"]
        for g in (wide(200), graph)
    )
    np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


def test_weights_that_constants_hold_are_looked_at_like_others() -> None:
    """As some exporters write all of them."""
    _, report = optimised(held(wide(200)))
    assert report.check.verdict == "passed"
    assert report.values is not None
    assert report.values.removed == 400


def test_strict_does_not_take_zeros_times_what_runs_for_zeros_but_knows_that_they_are_equal() -> None:
    _, report = optimised(wide(60), **STRICT)
    assert report.values is not None
    assert report.values.removed == 118
    assert all("repeat others" in c for c in report.values.claims)


@pytest.mark.parametrize("settings", [{"disable": ("values",)}, {"enable": ("conv",)}])
def test_it_is_left_out_on_request(settings: dict[str, object]) -> None:
    graph, report = optimised(wide(200), **settings)
    assert report.values is None
    assert sum(w.type.elements or 0 for w in graph.weights) == 262144  # type: ignore[misc]


def test_low_rank_is_two_thin_products_within_the_budget_of_errors() -> None:
    _, report = optimised(wide(0, 40))
    assert report.values is not None
    assert not report.values.exact
    assert "of rank 40" in report.values.claims[0]
    assert report.check.verdict == "passed"
    assert report.cost.after_us < report.cost.before_us


def test_a_weight_that_is_exactly_of_a_rank_is_so_exactly() -> None:
    (stage,) = by_values(wide(0, 40, whole=True), budget=1e-6)
    (claim,) = stage.certificate.factored
    assert claim.exact
    assert claim.rank == 40
    assert check_values(stage.before, stage.after, stage.certificate).exact == 1


def test_full_rank_and_strict_have_no_thin_products() -> None:
    assert by_values(wide(0), budget=2.5e-6) == ()
    assert optimised(wide(0, 40), **STRICT)[1].values is None


def test_rank_that_costs_more_accuracy_than_the_mode_allows_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.pipeline import fast_algorithm_proposals

    monkeypatch.setattr(
        fast_algorithm_proposals,
        "accuracy",
        lambda *a, **k: fast_algorithm_proposals.NumericalErrorComparison(1e-7, 1e-4, 1),
    )
    _, report = optimised(wide(0, 40))
    assert report.values is None
    assert any("does not allow" in n for n in report.notes)


def test_a_refuted_claim_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise NotEquivalent("planted")

    monkeypatch.setattr(weight_rewrites, "check_values", refused)
    _, report = optimised(wide(200))
    assert report.values is None
    assert any("planted" in n for n in report.notes)


def test_what_fails_the_check_of_the_whole_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder and a checker that are both wrong: the model's own outputs have the last word."""
    real = weight_rewrites.by_values

    def wrong(graph: Graph, **settings: object) -> object:
        stages = real(graph, **settings)  # type: ignore[arg-type]
        after = stages[-1].after
        weights = tuple(
            replace(w, data=type(w.data)(w.data.numpy() * np.float32(1.01)))  # type: ignore[call-arg]
            if w.data is not None and w.type.dtype.is_float else w
            for w in after.weights
        )  # fmt: skip
        return (*stages[:-1], replace(stages[-1], after=replace(after, weights=weights)))

    monkeypatch.setattr(weight_rewrites, "by_values", wrong)
    monkeypatch.setattr(weight_rewrites, "check_values", lambda *a, **k: weight_rewrites.ClaimCheckCounts(0, 0, 0))
    _, report = optimised(wide(200))
    assert report.values is None
    assert [f.left_out for f in report.check_failures] == ["values"]


def test_prices_decide() -> None:
    """One neuron of 512: less than the constant that would have to be added."""
    d, b = Drawn(2), GraphBuilder("tiny")
    x = b.input("x", "float32", (1, 4))
    w, bias = d.normal(4, 6), d.normal(6)
    w[:, 2], bias[2] = 0, 1
    y = b.op("Relu", b.op("Add", b.op("MatMul", x, b.constant(w)), b.constant(bias)))
    b.output(b.op("Relu", b.op("MatMul", y, b.constant(d.normal(6, 4)))), "y")
    assert by_values(b.build())
    _, report = optimised(b.build())
    assert report.values is None
    assert any("weights make superfluous" in n for n in report.notes)


@pytest.mark.parametrize("name", ["pruned_cnn", "twins", "transformer", "deconvolution", "groups", slow("joined")])
def test_verify_accepts_results_and_refutes_others(name: str) -> None:
    graph = MODELS[name](Drawn(4)).graph
    after = by_values(graph)[-1].after
    found = verify(graph, after)
    assert found.verdict in ("proved", "tested"), found
    weight = next(w for w in after.weights if w.name not in graph.weight and w.type.dtype.is_float and w.data)
    array = np.array(weight.data.numpy())  # type: ignore[union-attr]
    array.reshape(-1)[0] += 1
    weights = tuple(replace(w, data=type(w.data)(array)) if w is weight else w for w in after.weights)  # type: ignore
    assert verify(graph, replace(after, weights=weights)).verdict == "refuted"


def test_certificates_are_files_that_the_checker_reads(tmp_path: Path) -> None:
    model, folder = wide(200), tmp_path / "claims"
    found = superopt.optimize(model, options=superopt.Options(target=PROFILE, time_limit=None))
    assert found.by_values
    write_folder(folder, found.by_values)
    last, held = check_folder(model, folder)
    assert [str(h) for h in held] == [found.report.values.checked] if found.report.values else False
    assert verify(last, found.graph).verdict in ("proved", "proved up to rounding", "tested")
    with pytest.raises(UsageError):  # what is there stays
        write_folder(folder, found.by_values)
    with pytest.raises(NotEquivalent, match="weight"):
        check_folder(wide(199), folder)


@pytest.mark.parametrize("way", ["more", "another", "none", "elsewhere"])
def test_claims_that_were_tampered_with_are_refused(tmp_path: Path, way: str) -> None:
    model, folder = wide(200), tmp_path / "claims"
    write_folder(folder, [(s.after, s.certificate) for s in by_values(model)])
    data = json.loads((folder / MANIFEST).read_text())
    claims = data["rewrites"][0]["claims"]
    if way == "more":  # a neuron that is not dead is claimed to be
        row = claims["uniform"][0]
        alive = next(i for i in range(512) if i not in row["indices"])
        row["indices"].append(alive)
        row["numbers"].append(0.0)
    elif way == "another":  # other slices are said to be kept
        row = claims["kept"][0]
        row["axes"][0][1][0] += 1
    elif way == "none":
        claims["uniform"] = []
    else:
        data["rewrites"][0]["after"] = "../after-1.json"
    (folder / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(InvalidModel if way == "elsewhere" else NotEquivalent):
        check_folder(model, folder)
