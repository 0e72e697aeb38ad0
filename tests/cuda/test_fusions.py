"""What the CUDA backend's table prices as one kernel is what the planner makes one kernel of, pair by pair. No GPU."""

from functools import cache

import numpy as np
import pytest
from sampling import sampled

from superopt.cost import DeviceProfile, ProfileCostModel, graph_cost
from superopt.cost.backend_capabilities import SUPEROPT_CUDA
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.runtime.cuda.execution_plan import plan
from superopt.runtime.synthetic_tensors import sample

SHAPE = (2, 16, 8, 64)
POINTWISE = [n for n, o in REGISTRY.items() if o.family in ("elementwise", "activation")]


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def real(*shape):
    return sample(f(*shape))


def ints(*values):
    return np.array(values, np.int64)


REDUCED = ([ints(-1)], {})
ARGUMENTS = {
    **{n: ([real(64)], {}) for n in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Mean", "Sum")},
    "Clip": ([np.float32(0), np.float32(1)], {}),
    "Softmax": ([], {"axis": -1}), "LogSoftmax": ([], {"axis": -1}), "LayerNormalization": ([real(64)], {"axis": -1}),
    "RMSNormalization": ([real(64)], {"axis": -1}), "MeanVarianceNormalization": ([], {}), "LRN": ([], {"size": 3}),
    "BatchNormalization": ([real(16)] * 4, {}), "InstanceNormalization": ([real(16)] * 2, {}),
    "GroupNormalization": ([real(16)] * 2, {"num_groups": 4}),
    **{n: REDUCED for n in REGISTRY if n.startswith("Reduce")},
    "Transpose": ([], {"perm": (0, 2, 1, 3)}), "Slice": ([ints(1), ints(15), ints(1)], {}), "Trilu": ([], {}),
    "Concat": ([real(*SHAPE)], {"axis": 1}), "Split": ([ints(8, 8)], {"axis": 1}),
    "Expand": ([ints(3, 1, 1, 1, 1)], {}),
    "Pad": ([ints(0, 0, 1, 0, 0, 0, 1, 0)], {}), "Tile": ([ints(1, 2, 1, 1)], {}), "CumSum": ([ints(1)[0]], {}),
    "Gather": ([ints(0, 2, 3)], {"axis": 1}), "DepthToSpace": ([], {"blocksize": 2}),
    "SpaceToDepth": ([], {"blocksize": 2}), "MaxPool": ([], {"kernel_shape": (2, 2)}),
    "AveragePool": ([], {"kernel_shape": (2, 2)}), "GlobalAveragePool": ([], {}), "GlobalMaxPool": ([], {}),
    "Resize": ([None, np.array([1, 1, 2, 2], np.float32)], {}), "MatMul": ([real(64, 64)], {}),
    "Conv": ([real(16, 16, 3, 3), real(16)], {"pads": (1, 1, 1, 1)}),  # the library's: too many terms for a kernel
    **{n: ([], {}) for n in POINTWISE if REGISTRY[n].family == "activation" and n not in ("PRelu", "Swish")},
    **{n: ([], {}) for n in ("Abs", "Atan", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Round",
                             "Sign", "Sin", "Sqrt", "Tan")},
}  # fmt: skip
SEVERAL = {"Split": ("first", "second")}  # names of outputs
REDUCING = {
    "AveragePool", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN",
    "LayerNormalization", "LogSoftmax", "MaxPool", "MeanVarianceNormalization", "RMSNormalization", "Softmax",
    *(n for n in REGISTRY if n.startswith("Reduce")),
}  # fmt: skip


def chain(*names):
    """Operators in a row; the other arguments are weights."""
    weights, nodes, last = [], [], "x"
    for place, name in enumerate(names):
        arrays, attributes = ARGUMENTS[name]
        given = [last]
        for array in arrays:
            if array is not None:
                weights.append(constant(f"w{len(weights)}", np.asarray(array)))
            given.append("" if array is None else weights[-1].name)
        last = f"v{place}"
        outputs = (last, *(f"{o}{place}" for o in SEVERAL.get(name, ())[1:]))
        nodes.append(Node(f"n{place}", name, tuple(given), outputs, attributes))
    return Graph("c", (Value("x", f(*SHAPE)),), (Value(last, None),), tuple(weights), tuple(nodes), {"": 23})


@cache
def kernels(*names):
    """How many kernels a chain takes beyond those for outputs that nobody reads; ``None`` where it has no shape."""
    try:
        return len(plan(chain(*names)).steps) - sum(len(SEVERAL.get(n, ("",))) - 1 for n in names)
    except SuperoptError:
        return None  # the second cannot follow the first at these sizes


MOVES = {
    "Concat",
    "DepthToSpace",
    "Expand",
    "Gather",
    "Pad",
    "Resize",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Tile",
    "Transpose",
}
CONSUMERS = {n for n in ARGUMENTS if n not in REDUCING}


@pytest.mark.parametrize("producer", sampled(sorted(ARGUMENTS), 26))
def test_what_is_priced_as_one_kernel_is_planned_as_one(producer):
    consumers = CONSUMERS - MOVES if producer in REDUCING else CONSUMERS  # that depends on sizes, and is priced apart
    said = {c: SUPEROPT_CUDA.fusable(producer, c) for c in consumers if kernels(producer, c) is not None}
    planned = {c: kernels(producer, c) == 1 for c in said}
    assert said, "nothing can follow it"
    assert {c for c in said if said[c] != planned[c]} == set()


@pytest.mark.parametrize("consumer", sorted(REDUCING & set(ARGUMENTS)))
def test_what_reduces_is_never_free(consumer):
    assert not any(SUPEROPT_CUDA.fusable(p, consumer) for p in ARGUMENTS)


@pytest.mark.parametrize("producer", sorted(REDUCING & set(ARGUMENTS)))
def test_what_moves_the_result_of_a_reduction_is_never_free(producer):
    assert not any(SUPEROPT_CUDA.fusable(producer, c) for c in MOVES)


def test_a_transpose_between_two_operators_is_priced_as_it_is_planned():
    costs = ProfileCostModel(DeviceProfile({"backend": SUPEROPT_CUDA.name}))
    alone, together, apart = (
        graph_cost(chain(*names), costs).us for names in (("Exp",), ("Exp", "Transpose", "Relu"), ("Exp", "MatMul"))
    )
    assert kernels("Exp", "Transpose", "Relu") == 1
    assert together == pytest.approx(alone, rel=0.01)
    assert apart > 1.5 * alone


def test_what_grows_inside_a_kernel_is_still_written():
    costs = ProfileCostModel(DeviceProfile({"backend": SUPEROPT_CUDA.name}))
    same, grown = (graph_cost(chain("Exp", name), costs).us for name in ("Transpose", "Expand"))
    assert grown > same
