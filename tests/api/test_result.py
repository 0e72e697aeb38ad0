"""A result as its user meets it: short, shown, and a model in memory."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.frontend import GraphBuilder
from superopt.pipeline import Result

SHORT = 300  # characters that one line of a notebook or a debugger shows


@pytest.fixture(scope="module")
def result() -> Result:
    """Of a sum of two products whose weights have 200,000 elements."""
    builder = GraphBuilder("two products")
    x = builder.input("x", "float32", [4, 300])
    parts = [builder.op("MatMul", x, builder.constant(np.full((300, 330), 0.5, np.float32), n)) for n in ("a", "b")]
    builder.output(builder.op("Add", *parts), "y")
    return superopt.optimize(builder.build(), target="profile:cpu-epyc-2core", disable=["algorithms"])


def test_representations_are_short(result: Result) -> None:
    assert repr(result) == f"<superopt Result 'two products': {result.report.summary}>"
    assert repr(result.graph).startswith(
        "<superopt Graph 'two products': 1 nodes, 1 weights (396,000 bytes), x float32"
    )
    assert "array" not in repr(result.original)
    assert all(len(repr(each)) < SHORT for each in (result, result.report, result.graph, result.original))


def test_a_graph_of_many_inputs_is_shown_by_the_first() -> None:
    builder = GraphBuilder("wide")
    values = [builder.input(f"x{i}", "float32", [4]) for i in range(500)]
    builder.output(builder.op("Sum", *values), "y")
    assert len(repr(builder.build())) < SHORT
    assert "and 496 more → y float32" in repr(builder.build())


def test_printing_shows_the_table_of_the_command_line(result: Result) -> None:
    assert str(result) == f"two products  {result.report}"
    lines = str(result.report).splitlines()
    assert lines[0] == result.report.summary
    assert any(line.split()[:3] == ["nodes", "3", "1"] for line in lines)
    assert any(line.startswith("ONNX file") for line in lines)


def test_notebooks_show_the_table_and_the_graph(result: Result) -> None:
    assert result.report.summary.split(" (")[0] in result._repr_html_()
    assert result._repr_svg_() == result.graph._repr_svg_()
    assert result._repr_svg_().startswith("<svg")


def test_the_result_is_a_model_in_memory(result: Result) -> None:
    model = result.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node] == ["MatMul"]


def test_the_size_of_the_file_is_what_would_be_written(result: Result) -> None:
    assert result.report.file is not None
    assert result.report.file.bytes_after == len(result.to_onnx().SerializeToString())
    assert result.report.file.bytes_before > 2 * 4 * 300 * 330
