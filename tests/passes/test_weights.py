"""What the elements of weights allow: found on models of many kinds, refused where it would be wrong, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.errors import NotEquivalent, OutOfTime
from superopt.ir.graph import ArrayWeightData, Graph, constant
from superopt.ops.shape_inference import infer
from superopt.passes.weights import WeightRewriteStage, by_values
from superopt.pipeline import optimize
from superopt.rules.weight_claims import EqualSlices, KeptSlices, UniformSlices, ValueAlias, WeightRewriteCertificate
from superopt.runtime import onnx_runtime
from superopt.verifier.check.differential import check
from superopt.verifier.weights.claim_checker import check_values
from tests.passes.value_models import MODELS, STILL, Drawn, Made

SEEDS = (0, 1, 2)


def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), dict(feeds))


def drawn(made: Made, seed: int) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in made.feeds.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_superfluous_is_left_out_and_the_rest_computes_the_same(name: str, seed: int) -> None:
    made = MODELS[name](Drawn(seed))
    stages = by_values(made.graph)
    assert stages
    after = stages[-1].after
    feeds = drawn(made, seed)
    old, new = run(made.graph, feeds), run(after, feeds)
    for output, wanted in old.items():
        np.testing.assert_allclose(new[output], wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())
    types = infer(after).types
    for operator, length in made.left.items():
        shapes = [types[n.outputs[0]].shape for n in after.nodes if n.op == operator]  # type: ignore[union-attr]
        assert any(length in (shape or ()) for shape in shapes), (operator, shapes)
    for stage in stages:
        held = check_values(stage.before, stage.after, stage.certificate, seed=seed)
        assert held.sites or stage.certificate.same


def test_constants_leave_one_product() -> None:
    after = by_values(MODELS["constants"](Drawn(3)).graph)[-1].after
    assert [n.op for n in after.nodes if n.op != "Identity"] == ["Conv"]


@pytest.mark.parametrize("name", STILL)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_out_where_something_needs_it(name: str, seed: int) -> None:
    assert by_values(STILL[name](Drawn(seed))) == ()


@pytest.mark.parametrize("name", ["pruned_cnn", "transformer", "deconvolution", "groups"])
def test_nan_goes_on_where_nothing_is_taken_to_be_finite(name: str) -> None:
    made = MODELS[name](Drawn(0))
    assert not any(s.certificate.kept for s in by_values(made.graph, finite=False))


def test_equal_neurons_need_nothing_finite() -> None:
    stages = by_values(MODELS["twins"](Drawn(0)).graph, finite=False)
    assert [k.removed for s in stages for k in s.certificate.kept if k.value == "Tanh"] == [1]
    assert any(s.certificate.equal for s in stages)


def test_a_second_look_finds_what_the_first_made() -> None:
    """Filters that only dead channels meet are dead themselves."""
    from superopt.frontend import GraphBuilder

    d, b = Drawn(5), GraphBuilder("chain")
    x = b.input("x", "float32", ("N", 4, 5, 5))
    first, second = d.normal(8, 4, 1, 1), d.normal(8, 8, 1, 1)
    first[3] = 0
    second[2] = 0
    second[2, 3] = 1
    y = b.op("Relu", b.op("Conv", x, b.constant(first)))
    y = b.op("Relu", b.op("Conv", y, b.constant(second)))
    b.output(b.op("Conv", y, b.constant(d.normal(4, 8, 1, 1))), "y")
    stages = by_values(b.build())
    assert len(stages) == 2
    after = stages[-1].after
    kept = [infer(after).types[n.outputs[0]].shape[1] for n in after.nodes if n.op == "Relu"]  # type: ignore
    assert kept == [7, 7]


# ---- certificates that lie
def stage(name: str) -> WeightRewriteStage:
    return by_values(MODELS[name](Drawn(0)).graph)[-1]


def refuted(
    stage: WeightRewriteStage, certificate: WeightRewriteCertificate | None = None, after: Graph | None = None
) -> str:
    with pytest.raises(NotEquivalent) as told:
        check_values(stage.before, after or stage.after, certificate or stage.certificate)
    return str(told.value)


def test_other_weights_than_the_certificate_is_about_are_refused() -> None:
    found = stage("pruned_cnn")
    name = found.certificate.weights[0][0]
    weights = tuple(
        replace(w, data=ArrayWeightData(w.data.numpy() + np.float32(1e-6))) if w.name == name and w.data else w
        for w in found.before.weights
    )
    with pytest.raises(NotEquivalent, match="not the one that the certificate is about"):
        check_values(replace(found.before, weights=weights), found.after, found.certificate)


@pytest.mark.parametrize("size", [1e-3, 1e-12, 1e-30])
def test_a_weight_that_is_only_nearly_zero_is_refused(size: float) -> None:
    """The claim says 0; the field tells 10⁻³⁰ from it."""
    found = stage("groups")
    claim, *_ = found.certificate.uniform
    name = next(n.inputs[1] for n in found.before.nodes if n.outputs[0] == claim.value)
    array = np.array(found.before.weight[name].data.numpy())  # type: ignore[union-attr]
    array[claim.indices[0], 0, 0, 0] = size
    weights = tuple(replace(w, data=ArrayWeightData(array)) if w.name == name else w for w in found.before.weights)
    changed = replace(found.before, weights=weights)
    honest = replace(found.certificate, weights=())
    with pytest.raises(NotEquivalent, match="is not 0"):
        check_values(changed, found.after, honest)
    unsaid = replace(honest, uniform=(), equal=())
    with pytest.raises(NotEquivalent, match="does not hold what it keeps"):
        check_values(changed, found.after, unsaid)


def test_a_wrong_number_another_slice_and_a_missing_claim_are_refused() -> None:
    found = stage("twins")
    c = found.certificate
    wrong = [replace(u, numbers=tuple(n + 1e-3 for n in u.numbers)) for u in c.uniform]
    assert "is not" in refuted(found, replace(c, uniform=tuple(wrong)))
    twins = [replace(e, pairs=tuple((a, (b + 1) % 38) for a, b in e.pairs)) for e in c.equal]
    assert "slices" in refuted(found, replace(c, equal=tuple(twins)))
    assert "does not hold" in refuted(found, replace(c, equal=()))


def scaled(by: np.ndarray, reader: str) -> Graph:
    """A value of three columns times constants, and what reads it."""
    b = GraphBuilder("scaled")
    x = b.input("x", "float32", (1, 3))
    y = b.op("Mul", x, b.constant(by.astype(np.float32)), name="y")
    b.output(b.op(reader, y, axes=[0], name="z") if reader == "ReduceMax" else b.op(reader, y, name="z"), "out")
    return b.build()


@pytest.mark.parametrize(
    ("by", "reader", "refused"),
    [
        (np.ones((1, 3)), "Relu", None),
        (np.ones((1, 3)), "ReduceMax", None),
        (np.full((1, 3), 1 + 1e-6), "Relu", "is not 'x'"),
        (np.array([[1.0, 1.0, 0.0]]), "Relu", "is not 'x'"),
        (np.ones((4, 3)), "Softsign", "is not 'x'"),
    ],
)
def test_what_reads_the_same_value_is_not_computed_and_what_reads_another_is_refused(
    by: np.ndarray, reader: str, refused: str | None
) -> None:
    before = scaled(by, reader)
    y, z = (n.outputs[0] for n in before.nodes[:2])
    after = replace(before, nodes=tuple(replace(n, inputs=("x",)) if z in n.outputs else n for n in before.nodes[1:]))
    lie = WeightRewriteCertificate(same=(ValueAlias(y, "x"),))
    if refused is None:
        assert check_values(before, after, lie).sites == 0
        return
    with pytest.raises(NotEquivalent, match=refused):
        check_values(before, after, lie)


def test_no_more_is_looked_at_after_the_deadline() -> None:
    found = stage("twins")
    with pytest.raises(OutOfTime, match="no time left"):
        check_values(found.before, found.after, found.certificate, deadline=0.0)


def test_other_indices_than_those_kept_are_refused() -> None:
    found = stage("transformer")
    kept = [replace(k, axes=tuple((a, (*i[1:], i[0])) for a, i in k.axes)) for k in found.certificate.kept]
    assert "does not hold" in refuted(found, replace(found.certificate, kept=tuple(kept)))


def test_what_is_said_of_no_value_between_is_checked_from_one_end_to_the_other() -> None:
    found = stage("deconvolution")
    assert check_values(found.before, found.after, replace(found.certificate, kept=())).sites == 1


@pytest.mark.parametrize("name", ["pruned_cnn", "twins", "transformer", "joined"])
def test_every_changed_weight_of_the_result_is_told(name: str) -> None:
    found = stage(name)
    new = {w.name for w in found.after.weights} - {w.name for w in found.before.weights}
    assert new
    for chosen in sorted(new):
        weight = found.after.weight[chosen]
        assert weight.data is not None
        array = np.array(weight.data.numpy())
        if array.dtype.kind == "f":
            array.reshape(-1)[array.size // 2] += np.float32(0.01)
            weights = tuple(
                replace(constant(chosen, array), name=chosen) if w.name == chosen else w for w in found.after.weights
            )
            assert "does not" in refuted(found, after=replace(found.after, weights=weights))


def test_claims_about_what_nothing_makes_are_refused() -> None:
    found = stage("pruned_cnn")
    for claim in (UniformSlices("x", 1, (0,), (0.0,)), EqualSlices("x", 1, ((1, 0),))):
        field = "uniform" if isinstance(claim, UniformSlices) else "equal"
        assert "nothing makes 'x'" in refuted(found, replace(found.certificate, **{field: (claim,)}))
    assert refuted(found, replace(found.certificate, same=(ValueAlias("x", "y"),)))


def test_a_certificate_says_what_it_is_about() -> None:
    found = stage("twins").certificate
    assert any("repeat others" in str(e) for e in found.equal)
    assert any("constant" in str(u) for u in found.uniform)
    assert all(isinstance(k, KeptSlices) and k.removed for k in found.kept)
    assert found.exact
    assert found.finite


# ---- models of the corpus with weights made sparse
def sparse(graph: Graph, seed: int) -> Graph:
    """Slices of its weights made 0, equal, or one number; whole ones 0, 1 or the identity. Negative numbers positive:
    a variance is one, and NaN in the model itself says nothing."""
    rng, weights = np.random.default_rng(seed), []
    for weight in graph.weights:
        size = weight.type.elements
        if weight.data is None or not weight.type.dtype.is_float or not isinstance(size, int) or size < 2:
            weights.append(weight)
            continue
        array, kind = np.abs(weight.data.numpy()), rng.random()
        slices = np.moveaxis(array, int(rng.integers(array.ndim)), 0)
        if kind < 0.35:
            slices[rng.random(len(slices)) < 0.4] = 0
        elif kind < 0.5:
            slices[rng.integers(len(slices))] = slices[rng.integers(len(slices))]
        elif kind < 0.65:
            array[...] = kind < 0.57
        elif kind < 0.72:
            slices[rng.random(len(slices)) < 0.4] = 0.3
        elif array.ndim == 2 and array.shape[0] == array.shape[1]:
            array[...] = np.eye(len(array))
        weights.append(replace(weight, data=ArrayWeightData(array)))
    return replace(graph, weights=tuple(weights))


@pytest.mark.parametrize(
    "name",
    [pytest.param("swin_tiny", marks=pytest.mark.slow), "gru", "shufflenet_v2", "dynamic_bert", "unet", "mobilenet_v2"],
)
def test_corpus_models_with_sparse_weights(name: str) -> None:
    graph = sparse(formats.load(Path("corpus/tiny") / f"{name}.json"), 0)
    stages = by_values(graph)
    assert stages
    for stage in stages:
        check_values(stage.before, stage.after, stage.certificate)
    found = check(graph, stages[-1].after, trials=2, power="none")
    assert found.verdict == "passed", found.reason


@pytest.mark.parametrize("dead", ["com.microsoft.FastGelu (p)", "SplitToSequence (p, two)", "Softmax <odd = 1> (p)"])
def test_what_nobody_reads_of_an_operator_that_is_not_known_is_left_alone(dead: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        agraph (float[2, 4] x) => (float[2, 4] y) <int64 two = {{2}}> {{
            p = Relu (x)
            unread = {dead}
            y = Abs (p)
        }}""")
    graph = formats.from_onnx(model)
    assert len(optimize(graph, target="profile:cpu-epyc-2core").graph.nodes) <= 3


def test_a_table_of_one_row_is_read_there_alone() -> None:
    """Types of tokens of a model that knows one: positions are data, and there is but one."""
    d, b = Drawn(0), GraphBuilder("roberta")
    ids = b.input("ids", "int64", (1, 5))
    words = b.op("Gather", b.constant(d.normal(9, 4)), ids)
    kinds = b.op("Gather", b.constant(d.normal(1, 4)), b.op("Sub", ids, ids))
    b.output(b.op("Add", words, kinds), "y")
    found = by_values(b.build())
    assert found
    held = check_values(found[-1].before, found[-1].after, found[-1].certificate)
    assert held.claims == 1
    after = found[-1].after
    feeds = {"ids": np.array([[0, 8, 3, 3, 1]])}
    np.testing.assert_array_equal(*(next(iter(run(g, feeds).values())) for g in (found[0].before, after)))
