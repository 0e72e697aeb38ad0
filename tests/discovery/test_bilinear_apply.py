"""Choosing forms by prices, rewriting models with them, and what the budget of errors does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from lab.algorithms import FastAlgorithmMeasurement, replaced
from superopt import formats
from superopt.cost import for_target
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Value, structural_hash
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.passes.fast_algorithms import selection
from superopt.passes.fast_algorithms.selection import GROWTH, FastAlgorithmChoice, choose, forms_of, named, rewritten
from superopt.passes.fast_algorithms.sites import possible, sites_of
from superopt.passes.fast_algorithms.winograd_convolution import ReplacedConvolution, WinogradConvolution, changes
from superopt.pipeline.fast_algorithm_application import apply_algorithms
from superopt.pipeline.fast_algorithm_proposals import NumericalErrorComparison, accuracy
from superopt.runtime import onnx_runtime
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check.differential import check_rewrite

PROFILE = "profile:cpu-epyc-2core"


def model(channels: int = 256, size: int = 28, **attributes: Sequence[int]) -> Graph:
    """Two convolutions with biases, of which the first is followed by Relu, and a product of what is left."""
    b = GraphBuilder("m")
    x = b.input("x", "float32", (1, channels, size, size))
    window = {"pads": [1, 1, 1, 1], **attributes}
    for number in range(2):
        with b.scope(f"conv{number}"):
            w = b.weight("w", (channels, channels, 3, 3), scale=(9 * channels) ** -0.5)
            x = b.op("Conv", x, w, b.weight("b", (channels,)), **window)
            x = x.relu() if number == 0 else x
    b.output(b.op("MatMul", b.op("ReduceMean", x, b.constant([2, 3]), keepdims=0), b.weight("v", (channels, 32))), "y")
    return b.build()


def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), feeds)["y"]


def test_every_form_of_every_site_computes_the_same() -> None:
    graph = model(16, 13)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 13, 13)).astype(np.float32)}
    wanted = run(graph, feeds)
    sites = sites_of(graph)
    assert [s.node.op for s in sites] == ["Conv", "Conv"]
    forms = forms_of(sites[0], GROWTH["fast"])
    tiles = {(f.height.tile, f.width.tile) for f in forms if isinstance(f, WinogradConvolution)}
    assert tiles == {(1, 2), (1, 3), (1, 4), (1, 6), (2, 2), (3, 3), (4, 4), (6, 6)}
    for form in forms:
        made = rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5) for site in sites])
        assert {n.op for n in made.nodes} & {"Conv"} == set()
        assert np.abs(run(made, feeds) - wanted).max() <= 1e-4 * np.abs(wanted).max()
        assert [w.name for w in made.weights if w.name.endswith("/w")] == []


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        (
            {"strides": [2, 2]},
            {"F({0}×{0}, 3×3; stride 2×2)": (2, 3, 4), "F({0}, 3; stride 2; 3 taps directly)": (2, 3, 4)},
        ),
        (
            {"strides": [1, 2]},
            {"F({0}×{0}, 3×3; stride 1×2)": (2, 3, 4), "F({0}, 3; stride 2; 3 taps directly)": (2, 3, 4)},
        ),
        ({"strides": [2, 1]}, {"F({0}×{0}, 3×3; stride 2×1)": (2, 3, 4), "F({0}, 3; 3 taps directly)": (2, 3, 4, 6)}),
        (
            {"dilations": [2, 3], "pads": [2, 3, 2, 3]},
            {
                "F({0}×{0}, 3×3; dilation 2×3)": (2, 3, 4),
                "F({0}, 3; dilation 3; 3 taps directly)": (2, 3, 4, 6),
            },
        ),
    ],
)
def test_strides_and_dilations_have_forms(
    attributes: dict[str, Sequence[int]], names: dict[str, tuple[int, ...]]
) -> None:
    graph = model(16, 13, **attributes)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 13, 13)).astype(np.float32)}
    wanted = run(graph, feeds)
    sites = sites_of(graph)
    by_site = [list(forms_of(site, GROWTH["standard"])) for site in sites]
    for forms in zip(*by_site, strict=True):
        made = rewritten(graph, [FastAlgorithmChoice(s, f, 1.0, 0.5) for s, f in zip(sites, forms, strict=True)])
        assert np.abs(run(made, feeds) - wanted).max() <= 2e-5 * np.abs(wanted).max()
    said = {named(form).partition("), ")[0] + ")" for form in by_site[0]}
    assert said == {name.format(tile) for name, tiles in names.items() for tile in tiles}


@pytest.mark.parametrize("attributes", [{"strides": [3, 3]}, {"strides": [2, 2], "dilations": [2, 2]}])
def test_what_algorithms_do_not_say_is_left_alone(attributes: dict[str, Sequence[int]]) -> None:
    assert [list(forms_of(site, GROWTH["fast"])) for site in sites_of(model(16, 17, **attributes))] == [[], []]


def test_symbolic_images_and_weights_that_come_in_are_left_alone() -> None:
    b = GraphBuilder("m")
    x, w = b.input("x", "float32", (1, 32, "n", 8)), b.input("w", "float32", (32, 32, 3, 3))
    b.output(b.op("Conv", b.op("Conv", x, b.weight("v", (32, 32, 3, 3))), w), "y")
    assert sites_of(b.build()) == []


def test_modes_allow_what_they_say() -> None:
    site = sites_of(model(16, 13))[0]
    tiles = {mode: {f.height.tile for f in forms_of(site, growth)} - {1} for mode, growth in GROWTH.items()}
    assert tiles == {"strict": set(), "standard": {2, 3, 4}, "fast": {2, 3, 4, 6}}
    direct = {mode: {f.width.tile for f in forms_of(site, growth) if f.merged > 1} for mode, growth in GROWTH.items()}
    assert direct == {"strict": set(), "standard": {2, 3, 4, 6}, "fast": {2, 3, 4, 6}}


def test_prices_choose_a_form_where_there_are_many_channels_and_none_where_there_are_few() -> None:
    with for_target(PROFILE) as costs:
        many = choose(model(256, 28), costs, growth=GROWTH["standard"])
        few = choose(model(16, 28), costs, growth=GROWTH["standard"])
    assert len(many) == 2
    assert all(c.after < 0.95 * c.before and named(c.form).startswith("F(") for c in many)
    assert few == []


def test_prices_need_no_weights() -> None:
    graph = model(64, 12)
    site = sites_of(graph)[0]
    form = forms_of(site, GROWTH["standard"])[0]
    priced = rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5)], filled=False)
    written = rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5)])
    assert [(w.name, w.type) for w in priced.weights] == [(w.name, w.type) for w in written.weights]
    assert any(w.data is None for w in priced.weights)
    assert all(w.data is not None for w in written.weights)
    assert structural_hash(priced, values=False) == structural_hash(written, values=False)


def test_what_follows_element_by_element_comes_before_the_channels_are_second() -> None:
    graph = model(32, 12)
    site = sites_of(graph)[0]
    assert [n.op for n in site.after] == ["Relu"]
    assert site.output == site.after[0].outputs[0]
    nodes = rewritten(graph, [FastAlgorithmChoice(site, forms_of(site, GROWTH["standard"])[0], 1.0, 0.5)]).nodes
    last = next(n for n in nodes if n.outputs[0] == site.output)
    assert last.op == "Transpose"
    assert next(n for n in nodes if n.outputs[0] == last.inputs[0]).op == "Relu"


def test_a_result_that_others_read_too_keeps_what_follows_apart() -> None:
    b = GraphBuilder("m")
    x = b.input("x", "float32", (1, 32, 12, 12))
    y = b.op("Conv", x, b.weight("w", (32, 32, 3, 3), scale=0.06), pads=[1, 1, 1, 1])
    b.output(b.op("Add", y.relu(), y), "y")
    graph = b.build()
    site = sites_of(graph)[0]
    assert site.after == ()
    made = rewritten(graph, [FastAlgorithmChoice(site, forms_of(site, GROWTH["standard"])[0], 1.0, 0.5)])
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 32, 12, 12)).astype(np.float32)}
    assert np.abs(run(made, feeds) - run(graph, feeds)).max() <= 1e-5


def test_what_forms_share_is_made_once() -> None:
    b = GraphBuilder("m")
    x, w = b.input("x", "float32", (1, 32, 12, 12)), b.weight("w", (32, 32, 3, 3), scale=0.06)
    first, *others = (
        b.op("Conv", x, *with_bias, pads=[1, 1, 1, 1])
        for with_bias in ((w,), (w, b.weight("b", (32,))), (b.weight("v", (32, 32, 3, 3), scale=0.06),))
    )
    for number, other in enumerate(others):
        first = b.op("Add", first, b.op("Mul", other, b.constant(np.float32(number + 2))))
    b.output(first, "y")
    graph = b.build()
    sites = sites_of(graph)
    form = forms_of(sites[0], GROWTH["standard"])[0]
    assert isinstance(form, WinogradConvolution)
    made = rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5) for site in sites])
    assert [n.op for n in made.nodes].count("Gather") == 1
    assert sum(w.type.shape == (32, 32) for w in made.weights) == 2 * form.products
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 32, 12, 12)).astype(np.float32)}
    assert np.abs(run(made, feeds) - run(graph, feeds)).max() <= 1e-5 * np.abs(run(graph, feeds)).max()


@pytest.mark.parametrize("rank", [3, 4])
def test_a_batch_may_be_symbolic(rank: int) -> None:
    b = GraphBuilder("m")
    sizes, taps = (13,) * (rank - 2), (3,) * (rank - 2)
    x = b.input("x", "float32", ("n", 16, *sizes))
    w = b.weight("w", (16, 16, *taps), scale=0.1)
    y = b.op("Conv", x, w, b.weight("b", (16,)), pads=[1] * (2 * rank - 4)).relu()
    b.output(y, "y")
    graph = b.build()
    site = sites_of(graph)[0]
    assert site.sizes == (-1, 16, *sizes)
    made = rewritten(graph, [FastAlgorithmChoice(site, forms_of(site, GROWTH["standard"])[-1], 1.0, 0.5)])
    assert infer(made).types["y"] == infer(graph).types["y"]
    for batch in (1, 3):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 16, *sizes)).astype(np.float32)}
        wanted = run(graph, feeds)
        assert np.abs(run(made, feeds) - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("opset", [9, 10, 12, 13, 21])
def test_forms_are_written_at_the_models_opset(opset: int) -> None:
    graph = replace(model(16, 13), opset={"": opset})
    graph = replace(graph, outputs=(Value("cut", None),), nodes=(replace(graph.nodes[0], outputs=("cut",)),))
    used = set(graph.nodes[0].inputs)
    graph = replace(graph, weights=tuple(w for w in graph.weights if w.name in used)).checked()
    site = sites_of(graph)[0]
    made = rewritten(graph, [FastAlgorithmChoice(site, forms_of(site, GROWTH["standard"])[-1], 1.0, 0.5)])
    assert {"Split", "Pad", "Slice"} <= {n.op for n in made.nodes}
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 13, 13)).astype(np.float32)}
    wanted, found = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), feeds)["cut"]
        for g in (graph, made)
    )
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def chain(*ops: str) -> tuple[Graph, InferredTypes, list[ReplacedConvolution]]:
    """Convs and others on an image, one after the other; those that are called Form are Convs to be written as one."""
    b = GraphBuilder("m")
    x = b.input("x", "float32", (1, 32, 12, 12))
    for number, op in enumerate(ops):
        with b.scope(str(number)):
            if op in ("Conv", "Form"):
                x = b.op("Conv", x, b.weight("w", (32, 32, 3, 3)), pads=[1, 1, 1, 1])
            else:
                x = b.op(op, x)
    b.output(x, "y")
    graph = b.build()
    places = [ReplacedConvolution((n,), n.inputs[0]) for n, op in zip(graph.nodes, ops, strict=True) if op == "Form"]
    return graph, infer(graph), places


@pytest.mark.parametrize(
    ("ops", "count"),
    [
        (("Conv",), 2),  # into blocks, and back
        (("Conv", "Relu", "Conv"), 2),
        (("Conv", "Exp", "Conv"), 4),
        (("Form",), 0),  # its own Transposes are counted with it
        (("Conv", "Form", "Conv"), 2),  # they are the changes of layout around it
        (("Conv", "Form", "Exp", "Conv"), 3),
        (("Form", "Form"), -2),  # both go where two meet
        (("Exp", "Form", "Form", "Exp"), -2),
        (("Conv", "Form", "Form", "Conv"), 0),
    ],
)
def test_changes_of_layout_are_counted(ops: tuple[str, ...], count: int) -> None:
    graph, typing, places = chain(*ops)
    assert sum(changes(graph, typing, places, ONNX_RUNTIME_CPU.blocked).values()) == count
    assert changes(graph, typing, places, frozenset()) == {}


def test_a_form_has_to_gain_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model(256, 28)
    with for_target(PROFILE) as costs:
        assert len(choose(graph, costs, growth=GROWTH["standard"])) == 2
        monkeypatch.setattr(selection, "changes_us", lambda graph, typing, forms, costs: 1e5 * len(forms))
        assert choose(graph, costs, growth=GROWTH["standard"]) == []
        monkeypatch.setattr(selection, "changes_us", lambda graph, typing, forms, costs: 1e5 * (len(forms) == 2))
        assert len(choose(graph, costs, growth=GROWTH["standard"])) == 1


def test_models_without_a_place_for_a_form_are_told_without_types() -> None:
    assert possible(model(16, 13))
    assert possible(model(8, 13))  # of few channels: pixels may be channels
    b = GraphBuilder("m")
    b.output(b.op("Conv", b.input("x", "float32", (1, 8, 13)), b.weight("w", (8, 8, 3))), "y")
    assert not possible(b.build())
    b = GraphBuilder("m")
    x, w = b.input("x", "float32", (1, 32, 8, 8)), b.input("w", "float32", (32, 32, 3, 3))
    b.output(b.op("Conv", x, w), "y")
    assert not possible(b.build())


def test_a_rewritten_model_passes_the_check_and_its_errors_are_within_the_budget() -> None:
    graph = model(64, 12)
    sites = sites_of(graph)
    form = next(
        f for f in forms_of(sites[0], GROWTH["standard"]) if isinstance(f, WinogradConvolution) and f.height.tile == 4
    )
    after = rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5) for site in sites])
    assert check_rewrite(graph, after).verdict == "passed"
    errors = accuracy(graph, after, sizes={}, runtime=ONNX_RUNTIME, inputs=2)
    assert errors.before > 0  # which of the two is larger is the runtime's affair
    assert errors.within("standard")
    assert not NumericalErrorComparison(1.0e-7, 1.1e-7, 2).within("strict")


def test_the_budget_counts_what_is_allowed_and_what_there_was() -> None:
    assert NumericalErrorComparison(1e-7, 1e-6, 1).within("standard")
    assert not NumericalErrorComparison(1e-8, 1e-6, 1).within("standard")
    assert not NumericalErrorComparison(1e-6, 1.1e-5, 1).within("standard")
    assert NumericalErrorComparison(1e-6, 1.1e-5, 1).within("fast")


def test_strict_gives_the_input_back() -> None:
    graph = model(256, 28)
    found = apply_algorithms(graph, floats="strict", target=PROFILE)
    assert found.graph is graph
    assert found.reason
    with pytest.raises(UsageError, match="none of"):
        apply_algorithms(graph, floats="sloppy", target=PROFILE)


def test_a_section_of_the_page_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    assert replaced(page, "x", ["new"]) == "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n"
    with pytest.raises(UsageError, match="no section"):
        replaced(page, "y", [])


def test_prices_are_right_where_what_they_choose_is_as_fast_as_any() -> None:
    def at(modelled: tuple[float, ...], ratios: tuple[float, ...]) -> FastAlgorithmMeasurement:
        return FastAlgorithmMeasurement("s", (None, None, None), modelled, ratios, ratios, 1.0, None, 0.0)

    near, far = at((100.0, 50.0, 60.0), (1.0, 0.5, 0.49)), at((100.0, 50.0, 60.0), (1.0, 0.7, 0.49))
    assert near.chosen == far.chosen == 1
    assert near.lost(1) <= 1.03 < far.lost(1)
    assert near.lost(2) == far.lost(2) == 1.0
    assert at((100.0, 97.0, 99.0), (1.0, 0.98, 1.5)).chosen == 0
