"""Choosing forms by prices, rewriting models with them, and what the budget of errors does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from superopt import formats
from superopt.cost import for_target
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.lab.algorithms import Measured, replaced
from superopt.pipeline import algorithms as applying
from superopt.pipeline.algorithms import Accuracy, accuracy, apply_algorithms
from superopt.runtime import ort
from superopt.search.bilinear.choosing import GROWTH, Choice, choose, forms_of, named, rewritten, sites_of
from superopt.search.bilinear.conv import ConvForm
from superopt.verifier.differential import check_rewrite

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
    return ort.run(ort.make_session(formats.to_onnx_bytes(graph), threads=1), feeds)["y"]


def test_every_form_of_every_site_computes_the_same() -> None:
    graph = model(16, 13)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 13, 13)).astype(np.float32)}
    wanted = run(graph, feeds)
    sites = sites_of(graph)
    assert [s.node.op for s in sites] == ["Conv", "Conv"]
    forms = forms_of(sites[0], GROWTH["fast"])
    assert {f.height.tile for f in forms if isinstance(f, ConvForm)} == {2, 3, 4, 6}
    for form in forms:
        made = rewritten(graph, [Choice(site, form, 1.0, 0.5) for site in sites])
        assert {n.op for n in made.nodes} & {"Conv"} == set()
        assert np.abs(run(made, feeds) - wanted).max() <= 1e-4 * np.abs(wanted).max()
        assert [w.name for w in made.weights if w.name.endswith("/w")] == []


@pytest.mark.parametrize(
    "attributes",
    [{"strides": [2, 2]}, {"dilations": [2, 2], "pads": [2, 2, 2, 2]}, {"strides": [1, 2]}],
)
def test_what_algorithms_do_not_say_is_left_alone(attributes: dict[str, Sequence[int]]) -> None:
    assert sites_of(model(16, 13, **attributes)) == []


def test_symbolic_sizes_and_weights_that_come_in_are_left_alone() -> None:
    b = GraphBuilder("m")
    x, w = b.input("x", "float32", ("n", 32, 8, 8)), b.input("w", "float32", (32, 32, 3, 3))
    b.output(b.op("Conv", b.op("Conv", x, b.weight("v", (32, 32, 3, 3))), w), "y")
    assert sites_of(b.build()) == []


def test_modes_allow_what_they_say() -> None:
    site = sites_of(model(16, 13))[0]
    tiles = {mode: {f.height.tile for f in forms_of(site, growth)} for mode, growth in GROWTH.items()}
    assert tiles == {"strict": set(), "standard": {2, 3, 4}, "fast": {2, 3, 4, 6}}


def test_prices_choose_a_form_where_there_are_many_channels_and_none_where_there_are_few() -> None:
    with for_target(PROFILE) as costs:
        many = choose(model(256, 28), costs, growth=GROWTH["standard"])
        few = choose(model(16, 28), costs, growth=GROWTH["standard"])
    assert len(many) == 2
    assert all(c.after < 0.95 * c.before and named(c.form).startswith("F(") for c in many)
    assert few == []


def test_timing_has_the_last_word() -> None:
    with for_target(PROFILE) as costs:
        slow = choose(model(256, 28), costs, growth=16.0, timing=lambda graphs: [1.0, *[2.0] * (len(graphs) - 1)])
        last = choose(
            model(256, 28), costs, growth=16.0, timing=lambda graphs: [1.0 / n for n in range(1, 1 + len(graphs))]
        )
    assert slow == []
    assert {round(c.after / c.before, 3) for c in last} < {0.5, 0.333, 0.25}


def test_a_rewritten_model_passes_the_check_and_its_errors_are_within_the_budget() -> None:
    graph = model(64, 12)
    sites = sites_of(graph)
    form = next(f for f in forms_of(sites[0], GROWTH["standard"]) if isinstance(f, ConvForm) and f.height.tile == 4)
    after = rewritten(graph, [Choice(site, form, 1.0, 0.5) for site in sites])
    assert check_rewrite(graph, after).verdict == "passed"
    errors = accuracy(graph, after, sizes={}, inputs=2)
    assert 0 < errors.before < errors.after
    assert errors.within("standard")
    assert not errors.within("strict")


def test_the_budget_counts_what_is_allowed_and_what_there_was() -> None:
    assert Accuracy(1e-7, 1e-6, 1).within("standard")
    assert not Accuracy(1e-8, 1e-6, 1).within("standard")
    assert not Accuracy(1e-6, 1.1e-5, 1).within("standard")
    assert Accuracy(1e-6, 1.1e-5, 1).within("fast")


def test_strict_gives_the_input_back() -> None:
    graph = model(256, 28)
    found = apply_algorithms(graph, floats="strict", target=PROFILE)
    assert found.graph is graph
    assert found.reason
    with pytest.raises(UsageError, match="none of"):
        apply_algorithms(graph, floats="sloppy", target=PROFILE)


def test_a_model_is_rewritten_by_prices_and_more_accurately_where_the_budget_is_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = model(256, 14)
    found = apply_algorithms(graph, target=PROFILE, inputs=1)
    assert found.graph is not graph
    assert found.errors is not None
    assert found.errors.within("standard")
    assert found.measured is None
    assert tiles_of(found.choices) == {4}
    monkeypatch.setattr(applying, "MOST_ERROR", {**applying.MOST_ERROR, "standard": 0.9 * found.errors.after})
    assert tiles_of(apply_algorithms(graph, target=PROFILE, inputs=1).choices) == {2}


def tiles_of(choices: Sequence[Choice]) -> set[int]:
    return {c.form.height.tile for c in choices if isinstance(c.form, ConvForm)}


def test_a_false_form_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph, choices: Sequence[Choice]) -> Graph:
        good = rewritten(graph, choices)
        b = GraphBuilder("m")
        x = b.input("x", "float32", (1, 256, 14, 14))
        b.output(b.op("MatMul", b.op("ReduceMean", x, b.constant([2, 3]), keepdims=0), b.weight("v", (256, 32))), "y")
        return b.build() if len(choices) > 1 else good

    monkeypatch.setattr(applying, "rewritten", broken)
    graph = model(256, 14)
    found = apply_algorithms(graph, target=PROFILE, inputs=1)
    assert found.graph is graph
    assert "check failed" in found.reason


def test_a_section_of_the_page_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    assert replaced(page, "x", ["new"]) == "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n"
    with pytest.raises(UsageError, match="no section"):
        replaced(page, "y", [])


def test_prices_are_right_where_what_they_choose_is_as_fast_as_any() -> None:
    def at(modelled: tuple[float, ...], ratios: tuple[float, ...]) -> Measured:
        return Measured("s", (None, None, None), modelled, ratios, ratios, 1.0, None, 0.0)

    assert at((100.0, 50.0, 60.0), (1.0, 0.5, 0.49)).right
    assert not at((100.0, 50.0, 60.0), (1.0, 0.7, 0.49)).right
    assert at((100.0, 97.0, 99.0), (1.0, 0.98, 1.5)).chosen == 0
