"""Open sizes: images are images, and what trades one kind of work for another has to pay for one example, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.pipeline import candidate_acceptance, child_process_search, optimize
from superopt.pipeline.inspection import cost
from superopt.pipeline.memory_timeline import footprint_data, footprints
from superopt.pipeline.shape_defaults import default_sizes, single_example_sizes, sizes_text
from superopt.report import PairedMeasurement


def images(shape: Sequence[int | str], *, rows: int | None = None, first: bool = True) -> Graph:
    """A convolution of images; with ``rows``, one that only images of so many rows pass."""
    b = GraphBuilder("images")
    x = b.input("x", "float32", list(shape))
    if not first:
        x = b.op("Transpose", x, perm=[0, 3, 1, 2])
    spatial = len(shape) - 2
    y = b.op(
        "Conv",
        x,
        b.weight("w", (4, 3, *(1,) * (spatial - 2), 3, 3)),
        pads=[0] * (spatial - 2) + [1, 1] + [0] * (spatial - 2) + [1, 1],
    )
    if rows is not None:
        y = b.op("Add", y, b.weight("rows", (1, 1, rows, 1)))
    b.output(y, "y")
    return b.build()


@pytest.mark.parametrize(
    ("shape", "rows", "first", "expected"),
    [
        (["n", 3, "h", "w"], None, True, {"n": 1, "h": 224, "w": 224}),
        (["n", 3, "s", "s"], None, True, {"n": 1, "s": 224}),
        (["n", "h", "w", 3], None, False, {"n": 1, "h": 224, "w": 224}),
        ([2, 3, 48, "w"], None, True, {"w": 224}),  # lines of text
        (["n", 3, 1, "h", "w"], None, True, {"n": 1, "h": 224, "w": 224}),  # a film of one image
        (["n", 3, "h", "w"], 48, True, {"n": 1, "h": 48, "w": 224}),
        (["n", 3, "h", "w"], 9, True, {}),  # it accepts nothing that is tried
        (["n", 3, 32, 32], None, True, {}),
    ],
)
def test_images_are_of_a_size_that_the_model_accepts(
    shape: list[int | str], rows: int | None, first: bool, expected: Mapping[str, int]
) -> None:
    assert default_sizes(images(shape, rows=rows, first=first), {}) == expected


def test_what_its_user_says_stands() -> None:
    graph = images(["n", 3, "h", "w"])
    assert default_sizes(graph, {"h": 64, "n": 4}) == {"n": 4, "h": 64, "w": 224}
    assert default_sizes(graph, {"h": 64, "w": 32}) == {"h": 64, "w": 32}
    assert single_example_sizes(graph, {"n": 8}, {"n": 8}) is None
    assert single_example_sizes(graph, {"h": 64}, {"h": 64}) == {"h": 64, "n": 1}
    assert single_example_sizes(graph, {"n": 1}, {}) is None
    assert sizes_text(graph, {"w": 3, "n": 1, "other": 5}) == "n=1, w=3"


def chain(length: int) -> Graph:
    b = GraphBuilder("chain")
    value = b.input("x", "float32", ["rows", 64])
    for _ in range(length):
        value = b.op("Relu", value)
    b.output(value, "y")
    return b.build()


def timed(monkeypatch: pytest.MonkeyPatch, ratios: Mapping[int, float], found: Graph) -> list[Mapping[str, int]]:
    """A search that finds a graph, and a race in which it takes so much for so many rows; what was raced at."""
    asked: list[Mapping[str, int]] = []

    def measure(*_: object, sizes: Mapping[str, int], **__: object) -> PairedMeasurement:
        asked.append(dict(sizes))
        ratio = ratios[sizes.get("rows", 8)]
        if np.isnan(ratio):
            raise InvalidModel("it is refused")
        return PairedMeasurement(1.0, ratio, ratio, 31, 0.001, deviation=0.001)

    def search(given: Graph, *_: Any, **__: Any) -> SearchResult:
        return SearchResult(found)

    monkeypatch.setattr(candidate_acceptance, "measure", measure)
    monkeypatch.setattr(child_process_search, "search", search)
    return asked


@pytest.mark.parametrize(
    ("ratios", "taken", "said"),
    [
        ({8: 0.9, 1: 0.95}, True, ""),
        ({8: 0.9, 1: 1.2}, False, "for one example"),
        ({8: 1.2, 1: 0.5}, False, "was measured to take"),
        ({8: 0.9, 1: np.nan}, True, ""),  # no model has to accept one example
        ({8: np.nan, 1: 0.5}, False, "could not be timed"),
    ],
)
def test_what_trades_has_to_be_faster_and_not_slower_for_one(
    ratios: Mapping[int, float], taken: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, longer = chain(1), chain(3)
    timed(monkeypatch, ratios, longer)
    result = optimize(graph, target="cpu", disable=("algorithms", "values"))
    assert (result.graph is longer) is taken
    assert not said or any(said in n for n in result.report.notes)


def test_what_does_less_is_raced_once_and_a_report_says_at_which_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, shorter = chain(3), chain(1)
    asked = timed(monkeypatch, {8: 0.9}, shorter)
    result = optimize(graph, target="cpu", disable=("algorithms", "values"))
    assert result.graph is shorter
    assert asked == [{}]
    assert result.report.measured is not None
    assert result.report.measured.circumstances["sizes"] == "rows=8"


def windows(shape: Sequence[int | str], span: int) -> Graph:
    """A convolution of sounds along their last axis, by windows of so many samples."""
    b = GraphBuilder("windows")
    b.output(b.op("Conv", b.input("x", "float32", list(shape)), b.weight("w", (2, 1, span)), strides=[span]), "y")
    return b.build()


@pytest.mark.parametrize(
    ("shape", "span", "expected"),
    [
        (["n", 1, "samples"], 8, {}),
        (["n", 1, "samples"], 400, {"samples": 512}),
        (["n", 1, "samples"], 20000, {}),  # it accepts nothing that is tried
        (["n", 1, 400], 400, {}),
    ],
)
def test_sounds_are_as_long_as_the_model_needs(shape: list[int | str], span: int, expected: Mapping[str, int]) -> None:
    assert default_sizes(windows(shape, span), {}) == expected


@pytest.mark.parametrize(("wide", "given", "expected"), [(64, {}, {}), (512, {}, {"n": 1}), (512, {"n": 8}, {"n": 8})])
def test_one_example_stands_for_several_where_they_are_much_work(
    wide: int, given: Mapping[str, int], expected: Mapping[str, int]
) -> None:
    b = GraphBuilder("large")
    x = b.input("x", "float32", ["n", 64, wide, wide])
    b.output(b.op("Conv", x, b.weight("w", (64, 64, 3, 3)), pads=[1] * 4), "y")
    assert default_sizes(b.build(), given) == expected


def test_costs_and_memory_are_of_the_sizes_at_which_optimize_counts() -> None:
    graph = images(["n", 3, "h", "w"])
    sizes = {"n": 1, "h": 224, "w": 224}
    for facts, said in (
        (cost(graph, target="profile:cpu-epyc-2core"), cost(graph, target="profile:cpu-epyc-2core", sizes=sizes)),
        (footprint_data(graph), footprint_data(graph, sizes=sizes)),
    ):
        assert facts == said
        assert facts["sizes"] == sizes


def test_a_model_and_its_result_are_counted_at_the_same_sizes() -> None:
    graph, other = images(["n", 3, "h", "w"]), images(["n", 3, "h", "w"], rows=48)
    both = footprints(graph, other, sizes={"h": 48})
    assert both["before"]["sizes"] == both["after"]["sizes"] == {"n": 1, "h": 48, "w": 224}
    assert list(footprints(graph, graph)) == ["before"]
