"""The table of what ONNX Runtime fuses, checked against what ONNX Runtime does."""

import numpy as np
import pytest

from superopt import formats
from superopt.cost import ONNX_RUNTIME_CPU
from superopt.cost.backend_capabilities import SUPEROPT_CUDA
from superopt.cost.measurement_record import key_of
from superopt.formats.weight_data import RandomWeightData
from superopt.ir.graph import ArrayWeightData, Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.executed_graph import first_of_equals, lowered
from superopt.runtime.synthetic_tensors import sample

IMAGE = TensorType(DType.FLOAT32, (1, 16, 8, 8))
MATRIX = TensorType(DType.FLOAT32, (4, 16))


def typed(*shape):
    return TensorType(DType.FLOAT32, shape)


def chain(producer, consumer):
    """``consumer(producer(x))`` with weights wherever either takes more arguments."""
    weights = []

    def weight(*shape):
        weights.append(constant(f"w{len(weights)}", sample(typed(*shape), len(weights))))
        return weights[-1].name

    image = producer in ("Conv", "ConvTranspose", "BatchNormalization")
    second = {
        "Conv": lambda: [weight(16, 16, 3, 3)], "ConvTranspose": lambda: [weight(16, 16, 3, 3)],
        "BatchNormalization": lambda: [weight(16) for _ in range(4)], "MatMul": lambda: [weight(16, 16)],
        "Gemm": lambda: [weight(16, 16), weight(16)], "Add": lambda: [weight(16, 1, 1) if image else weight(16)],
        "Mul": lambda: [weight(16, 1, 1) if image else weight(1)], "Div": lambda: [weight(1)],
    }  # fmt: skip
    first = Node("p", producer, ("x", *second.get(producer, list)()), ("m",))
    last = Node("c", consumer, ("m", *second.get(consumer, list)()), ("y",))
    kind = IMAGE if image else MATRIX
    return Graph("chain", (Value("x", kind),), (Value("y", None),), tuple(weights), (first, last), {"": 21})


CASES = sorted(
    (p, c)
    for f in ONNX_RUNTIME_CPU.fusions
    for p in f.producers
    for c in f.consumers
    if p in ("Conv", "MatMul", "Gemm") and c != "MatMul" and not (p == "MatMul" and c in ("Mul", "Div"))
)


@pytest.mark.parametrize(("producer", "consumer"), CASES)
def test_onnx_runtime_fuses_what_the_table_says(producer, consumer):
    found = [n.op for n in lowered(chain(producer, consumer)).nodes if not n.op.startswith("Reorder")]
    assert len(found) == 1, f"{producer} then {consumer} became {found}"


@pytest.mark.parametrize(("producer", "consumer"), [("Relu", "Sigmoid"), ("Softmax", "Relu"), ("MatMul", "Sigmoid")])
def test_what_is_not_in_the_table_is_not_fused(producer, consumer):
    assert not ONNX_RUNTIME_CPU.fusable(producer, consumer)
    assert len(lowered(chain(producer, consumer)).nodes) == 2


def test_a_fusion_may_need_constant_operands():
    assert ONNX_RUNTIME_CPU.fusable("MatMul", "Add", constant_others=True)
    assert not ONNX_RUNTIME_CPU.fusable("MatMul", "Add", constant_others=False)
    assert ONNX_RUNTIME_CPU.fusable("Conv", "Add", constant_others=False)


def test_a_lowered_graph_is_a_graph_again():
    again = lowered(chain("Conv", "Relu"))
    assert formats.to_onnx_bytes(again)


def test_equal_weights_are_held_once():
    ones, again, other = (constant(n, np.full((4, 4), v, np.float32)) for n, v in (("a", 1), ("b", 1), ("c", 2)))
    text = constant("t", np.array(["x", "y"], dtype=object))
    assert first_of_equals([ones, again, other]) == {"a": "a", "b": "a", "c": "c"}
    assert first_of_equals([ones, Weight("w", ones.type, None)]) == {"a": "a", "w": "w"}  # unknown elements may differ
    assert first_of_equals([]) == {}
    assert first_of_equals([text, text])


def test_weights_that_differ_at_their_ends_are_not_read_through():
    class Counted(ArrayWeightData):
        read = 0

        @property
        def digest(self) -> str:
            Counted.read += 1
            return ArrayWeightData(self.array).digest

    def of(name: str, *elements: int) -> Weight:
        array = np.zeros(1000, np.float32)
        array[list(elements)] = 1.0
        return Weight(name, constant(name, array).type, Counted(array))

    assert first_of_equals([of("a", 0), of("b", 999), of("c")]) == {"a": "a", "b": "b", "c": "c"}
    assert Counted.read == 0
    inside = [of("a"), of("b", 500), of("c")]
    assert first_of_equals(inside) == {"a": "a", "b": "b", "c": "a"}
    drawn = Weight("r", inside[0].type, RandomWeightData(inside[0].type, 1, 0.0, 1.0))  # ones, like what is stored
    assert first_of_equals([of("a", *range(1000)), drawn]) == {"a": "a", "r": "a"}


def test_kernels_of_one_name_share_a_packed_weight():
    runtime = ONNX_RUNTIME_CPU
    assert runtime.copy_of("w", "MatMul") == runtime.copy_of("w", "MatMul") != runtime.copy_of("w", "Gemm")
    assert runtime.copy_of("w", "Add") == runtime.copy_of("w", "Mul") == "w"
    assert SUPEROPT_CUDA.copy_of("w", "MatMul") == "w"


@pytest.mark.parametrize(("producer", "consumer"), [("MatMul", "Add"), ("Gemm", "Relu"), ("Gemm", "Tanh")])
def test_a_fused_kernel_has_the_name_that_the_table_gives(producer, consumer):
    [kernel] = lowered(chain(producer, consumer)).nodes
    assert kernel.op == ONNX_RUNTIME_CPU.fused(producer, consumer)


def test_operands_that_may_change_places_are_one_question() -> None:
    vector, image = TensorType(DType.FLOAT32, (32,)), TensorType(DType.FLOAT32, (8, 16, 32))
    for first, second in (((image, vector), (False, True)), ((vector, image), (True, False))):
        assert ONNX_RUNTIME_CPU.as_run("Mul", first, second) == ((image, vector), (False, True))
        assert ONNX_RUNTIME_CPU.as_run("Sub", first, second) == (first, second)
    turned = [key_of("Mul", {}, args, fixed).question for args, fixed in (
        ((image, vector), (False, True)), ((vector, image), (True, False)))]  # fmt: skip
    assert turned[0] == turned[1]
