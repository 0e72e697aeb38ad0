"""A weight takes over an order: what is moved before or behind a product is moved as is quickest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from superopt import cost as costs
from superopt.discovery.discover import claimed
from superopt.discovery.learn import LearningResult, learn
from superopt.discovery.skeletons import reordered
from superopt.discovery.symbolic_generalisation import lifted
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.rules import load_library
from superopt.verifier import verdict
from superopt.verifier.exact import testing

PRICES = "profile:cpu-epyc-2core"


def real(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def patches(x: Term) -> Term:
    """Rows of the pixels of each patch, channels last."""
    moved = OperatorTerm("Transpose", (x,), (("perm", (0, 2, 4, 3, 5, 1)),))
    return OperatorTerm("Reshape", (moved,), (("shape", (2, 15, 84)),))


def forms(term: Term, kinds: dict[str, TensorType]) -> list[str]:
    weights = frozenset(n for n in kinds if n.startswith("w"))
    classes = dict.fromkeys(kinds, "f")
    return [str(t) for p, _ in lifted(term, kinds, weights, classes) for t in reordered(p)]


def test_rows_of_a_product_stand_in_every_order_that_the_data_have() -> None:
    term = OperatorTerm("MatMul", (patches(VariableTerm("xa")), VariableTerm("wa")), ())
    made = forms(term, {"xa": real(2, 3, 5, 4, 3, 7), "wa": real(84, 11)})
    assert any("perm=[0, 2, 4, 1, 3, 5]" in s for s in made)  # pixels of one row stay beside each other
    assert all("MatMul" in s and s.count("Transpose") <= 1 for s in made)


def test_movements_alone_and_operators_of_two_data_are_not_reordered() -> None:
    kinds = {"xa": real(2, 3, 5, 4, 3, 7), "xb": real(2, 84, 11)}
    assert forms(patches(VariableTerm("xa")), kinds) == []
    assert forms(OperatorTerm("MatMul", (patches(VariableTerm("xa")), VariableTerm("xb")), ()), kinds) == []


def learnt(graph: Graph, out: Path) -> LearningResult:
    with claimed(out) as asked, costs.for_target(PRICES) as prices:
        return learn({"net": graph}, load_library(), prices, out=out, asked=asked, target=PRICES, seconds=240.0)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "behind"])
def test_the_order_of_pixels_in_a_patch_is_learnt_away(side: str, tmp_path: Path) -> None:
    """As `einops` writes it before a vision transformer's first layer, and behind a diffusion transformer's last."""
    b = GraphBuilder("net")
    shape = b.constant(np.array([1, 3, 8, 16, 8, 16] if side == "before" else [1, 8, 8, 16, 16, 3]))
    flat = b.constant(np.array([1, 64, 768] if side == "before" else [1, 3, 128, 128]))
    if side == "before":
        x = b.op("Reshape", b.op("Relu", b.input("x", "float32", (1, 3, 128, 128))), shape)
        x = b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 4, 3, 5, 1]), flat)
        b.output(b.op("Tanh", b.op("MatMul", x, b.weight("w", (768, 192)))), "y")
    else:
        x = b.op("Relu", b.input("x", "float32", (1, 64, 192)))
        x = b.op("Add", b.op("MatMul", x, b.weight("w", (192, 768))), b.weight("z", (768,)))
        x = b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 5, 1, 3, 2, 4])
        b.output(b.op("Tanh", b.op("Reshape", x, flat)), "y")
    found = learnt(b.build(), tmp_path / "out")
    assert found.saved_us["net"] > 0.25 * found.model_us["net"]
    for rule in found.rules:
        assert isinstance(testing.test(rule, seed=31), verdict.TestedVerdict)
        moved = [t for t in postorder(rule.rhs[0]) if isinstance(t, OperatorTerm) and t.op == "Transpose"]
        assert moved  # in another order, and not in none
