"""The union of input and result: what is on both sides, what changed, which changes are alike."""

from __future__ import annotations

import json

import pytest

from superopt.formats import from_bytes
from superopt.server.views import union_graph
from superopt.server.views.union_graph import union


def graph(nodes: list[dict[str, object]], name: str = "g") -> object:
    document = {"format": "superopt.graph", "version": 1, "name": name, "opset": {"": 21},
                "inputs": [{"name": "x", "dtype": "float32", "shape": [2, 3]}], "nodes": nodes,
                "outputs": [{"name": "y"}]}  # fmt: skip
    return from_bytes(json.dumps(document).encode())


def node(op: str, reads: str, makes: str) -> dict[str, object]:
    return {"name": makes, "op": op, "inputs": reads.split(), "outputs": [makes]}


def test_what_did_not_change_is_there_once() -> None:
    before = graph([node("Relu", "x", "a"), node("Neg", "a", "b"), node("Neg", "b", "c"), node("Exp", "c", "y")])
    after = graph([node("Relu", "x", "a"), node("Identity", "a", "c"), node("Exp", "c", "y")])
    found = union(before, after)  # type: ignore[arg-type]
    drawn = [(n["op"], n["side"]) for n in found["nodes"]]
    assert drawn == [("input", "both"), ("Relu", "both"), ("Neg", "before"), ("Neg", "before"), ("Exp", "both"),
                     ("Identity", "after"), ("output", "both")]  # fmt: skip
    [region] = found["regions"]
    assert (region["before"], region["after"]) == ([2, 3], [5])
    edges = {(a, b): side for a, b, side in found["edges"]}
    assert edges == {(0, 1): "both", (1, 2): "before", (2, 3): "before", (3, 4): "before", (1, 5): "after",
                     (5, 4): "after", (4, 6): "both"}  # fmt: skip


def test_a_renamed_value_is_no_change() -> None:
    before = graph([node("Relu", "x", "a"), node("Exp", "a", "y")])
    after = graph([node("Relu", "x", "other"), node("Exp", "other", "y")])
    found = union(before, after)  # type: ignore[arg-type]
    assert {n["side"] for n in found["nodes"]} == {"both"}
    assert found["regions"] == []


def test_changes_that_look_alike_share_a_key() -> None:
    def chain(ops: str) -> object:
        names = [*(f"v{i}" for i in range(len(ops.split()) - 1)), "y"]
        return graph([node(op, "x" if i == 0 else names[i - 1], names[i]) for i, op in enumerate(ops.split())])

    before = chain("Neg Relu Neg Relu Abs Relu")
    after = graph([node("Exp", "x", "v0"), node("Relu", "v0", "v1"), node("Exp", "v1", "v2"), node("Relu", "v2", "v3"),
                   node("Exp", "v3", "v4"), node("Relu", "v4", "y")])  # fmt: skip
    found = union(before, after)  # type: ignore[arg-type]
    keys = [r["like"] for r in found["regions"]]
    assert len(keys) == 3
    assert len(set(keys)) == 2


def test_a_graph_too_large_to_draw_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(union_graph, "MOST_NODES", 200)
    count = 201
    names = [f"v{i}" for i in range(count - 1)] + ["y"]
    large = graph([node("Relu", "x" if i == 0 else names[i - 1], names[i]) for i in range(count)])
    found = union(large, large)  # type: ignore[arg-type]
    assert "nodes" not in found
    assert str(count) in found["omitted"]
