"""Results have to load as users load them: with the runtime's optimisations."""

from __future__ import annotations

import numpy as np
import pytest

from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph
from superopt.runtime import onnx_runtime
from superopt.verifier.check.differential import check_rewrite


def _scaled(*, twice: bool) -> Graph:
    """Products of x/4 and x/16; ``twice``: the second of which is x/4 by 4."""
    b = GraphBuilder("net")
    x, w = b.op("Relu", b.input("x", "float32", (8, 8))), b.input("w", "float32", (8, 8))
    quarter = b.op("Div", x, b.constant(np.array(4.0, np.float32)))
    less = b.op("Div", quarter if twice else x, b.constant(np.array(4.0 if twice else 16.0, np.float32)))
    b.output(b.op("MatMul", quarter, w), "y")
    b.output(b.op("MatMul", less, w), "z")
    return b.build()


def test_a_result_that_the_runtime_loads_only_without_its_optimisations_fails() -> None:
    """ONNX Runtime 1.32 takes the first division into its product, and forgets that the second reads it."""
    before, after = _scaled(twice=False), _scaled(twice=True)
    with pytest.raises(InvalidModel, match="not a graph input"):
        onnx_runtime.make_session(formats.to_onnx_bytes(after), threads=1)
    found = check_rewrite(before, after)
    assert found.verdict == "failed"
    assert "accepts the original but refuses the result" in found.reason
    assert check_rewrite(after, after).verdict == "passed"  # what is refused as it is may stay so
