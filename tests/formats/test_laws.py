"""load∘save is the identity, for graphs drawn at random and for the parts of ONNX that are easy to lose."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    SparseTensorProto,
    TensorAnnotation,
    TensorProto,
    TrainingInfoProto,
    helper,
    numpy_helper,
)  # fmt: skip

from superopt.formats import from_bytes, from_onnx, load, read_json, save, schema, to_json, to_onnx, to_onnx_bytes
from superopt.formats.json_writer import format_document, whole_document
from superopt.formats.onnx_tensors import ELEMENT_TYPES
from superopt.formats.weight_data import PackedWeightData, RandomWeightData, expected_bytes, pack, unpack
from superopt.ir.errors import InvalidModel, UsageError
from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Value, Weight, constant, structural_hash
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType

VALIDATOR = jsonschema.Draft202012Validator(schema())
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
dtypes = st.sampled_from([d for d in DType if d in ELEMENT_TYPES and d is not DType.STRING])
floats32 = st.floats(width=32, allow_nan=True)


@st.composite
def weights(draw: st.DrawFn, name: str) -> Weight:
    """Any type, any bits; a few without values, of strings, or random."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    kind = TensorType(draw(dtypes), shape)
    doc, metadata = draw(st.sampled_from(["", "a doc"])), draw(st.sampled_from([{}, {"k": "v", "x-made": "true"}]))
    match draw(st.integers(0, 7)):
        case 0:
            return Weight(name, kind, None, doc, metadata)
        case 1:
            array = np.empty(shape, object)
            array.reshape(-1)[:] = [draw(st.binary(max_size=4)) for _ in range(array.size)]
            return Weight(name, TensorType(DType.STRING, shape), ArrayWeightData(array), doc, metadata)
        case 2:
            random = TensorType(DType.FLOAT32, shape)
            data = RandomWeightData(
                random, draw(st.integers(0, 99)), draw(floats32.filter(np.isfinite)), 0.5, "uniform"
            )
            return Weight(name, random, data, doc, metadata)
    raw = np.random.default_rng(draw(st.integers(0, 99))).bytes(expected_bytes(kind))
    count = int(np.prod(shape))
    if kind.dtype.bits < 8 and count * kind.dtype.bits % 8:
        raw = raw[:-1] + bytes([raw[-1] & ((1 << count * kind.dtype.bits % 8) - 1)])
    return Weight(name, kind, PackedWeightData(kind, raw), doc, metadata)


attributes = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    floats32.map(float),
    st.binary(max_size=6),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3).map(tuple),
    st.lists(floats32.map(float), min_size=1, max_size=3).map(tuple),
    st.lists(st.binary(max_size=3), min_size=1, max_size=3).map(tuple),
    st.just(OpaqueAttribute(AttributeProto(name="a", type=AttributeProto.INTS).SerializeToString(deterministic=True))),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A few nodes of a domain of our own over inputs and weights; names of any characters."""
    pool = draw(st.lists(names.filter(lambda n: not n.startswith("?")), min_size=6, max_size=10, unique=True))
    dims = st.one_of(st.integers(0, 9), st.sampled_from([sym("N"), sym("batch size"), sym("floor")]))
    kind = TensorType(draw(dtypes), draw(st.none() | st.lists(dims, max_size=3).map(tuple)))
    inputs = (Value(pool[0], kind, draw(st.sampled_from(["", "doc"]))),)
    held = tuple(draw(weights(n)) for n in pool[1:3])
    nodes = []
    for index, output in enumerate(pool[3:]):
        sources = draw(st.lists(st.sampled_from(["", *pool[: 3 + index]]), max_size=3))
        found = {"a": draw(attributes)} if draw(st.booleans()) else {}
        if draw(st.integers(0, 9)) == 0:
            found["t"] = draw(weights("inner").filter(lambda w: w.data is not None))
        name = draw(st.sampled_from(["", output]))
        nodes.append(
            Node(name, "Op", tuple(sources), (output,), found, "own.domain", doc=draw(st.sampled_from(["", "d"])))
        )
    values = (Value(pool[3], draw(st.sampled_from([None, kind]))),)
    outputs = (Value(pool[-1], None),)
    metadata = draw(st.sampled_from([{}, {"author": "me", "x-tool": '{"a": [1, 2.5]}'}]))
    return Graph(
        pool[0], inputs, outputs, held, tuple(nodes), {"own.domain": 1, "": 17}, values, "doc", metadata
    ).checked()


def described(graph: Graph) -> Graph:
    """The graph with weights named by their digest, so that == compares everything."""

    def plain(w: Weight) -> Weight:
        return Weight(w.name, w.type, w.data and w.data.digest, w.doc, dict(w.metadata))  # type: ignore[arg-type]

    nodes = tuple(replace(n, attributes={k: _key(v) for k, v in n.attributes.items()}) for n in graph.nodes)
    shapeless = sorted((plain(w) for w in graph.weights), key=lambda w: w.name)
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(shapeless), nodes, dict(graph.opset), graph.values,
                 graph.doc, dict(graph.metadata), dict(graph.extras))  # fmt: skip


def _key(value: object) -> object:
    if isinstance(value, Weight):
        return value.name, value.type, value.data and value.data.digest
    return repr(value)  # NaN equals NaN


@pytest.mark.essential
@settings(max_examples=75, deadline=None)
@given(graphs())
def test_json_round_trip(graph: Graph) -> None:
    document = to_json(graph)
    VALIDATOR.validate(document)
    again = read_json(json.dumps(document).encode())
    assert described(again) == described(graph)
    assert structural_hash(again) == structural_hash(graph)


@pytest.mark.essential
@settings(max_examples=75, deadline=None)
@given(graphs())
def test_onnx_round_trip(graph: Graph) -> None:
    again = from_bytes(to_onnx_bytes(graph))
    assert described(again) == described(graph)
    assert to_onnx_bytes(again) == to_onnx_bytes(from_bytes(to_onnx_bytes(again)))


@pytest.mark.essential
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_files_round_trip(graph: Graph) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.json", "b.onnx", "c.json", "d.onnx"):
            save(graph, Path(folder, name), external_above=0 if name == "b.onnx" else 2**30)
            again = load(Path(folder, name))
            assert described(again) == described(graph)
            graph = again
        VALIDATOR.validate(json.loads(Path(folder, "a.json").read_text()))


@given(dtypes, st.lists(st.integers(0, 5), max_size=3), st.integers(0, 99))
def test_pack_inverts_unpack(dtype: DType, shape: list[int], seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2, shape)
    array = codes.astype(dtype.numpy)
    kind = TensorType(dtype, tuple(shape))
    packed = pack(array, dtype)
    assert len(packed) == expected_bytes(kind)
    assert unpack(packed, kind).tobytes() == array.tobytes()
    assert PackedWeightData(kind, packed).digest == ArrayWeightData(array).digest


def test_packing_is_onnx_own() -> None:
    for name, values in (
        ("INT4", [-8, -1, 0, 7, 3]),
        ("UINT4", [0, 15, 9]),
        ("FLOAT4E2M1", [0.5, -6, 1.5]),
        ("INT2", [-2, 1, 0]),
    ):
        proto = helper.make_tensor("w", getattr(TensorProto, name), [len(values)], values)
        model = _model()
        model.graph.initializer.append(proto)
        data = from_onnx(model).weight["w"].data
        assert data is not None
        assert data.numpy().astype(np.float64).tolist() == values
        again = to_onnx(read_json(json.dumps(to_json(from_onnx(model))).encode()))
        assert numpy_helper.to_array(again.graph.initializer[0]).astype(np.float64).tolist() == values


def _model() -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", None, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", [x], [y])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def _rich() -> ModelProto:
    """A model with everything that other tools lose."""
    model = _model()
    graph = model.graph
    model.producer_name, model.doc_string, model.model_version, model.domain = "test", "doc", 7, "org"
    helper.set_model_props(model, {"license": "MIT", "x-odd": "not json"})
    graph.doc_string = "graph doc"
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "BATCH"
    graph.metadata_props.add(key="g", value="1")
    graph.node[0].doc_string = "node doc"
    graph.node[0].metadata_props.add(key="n", value="1")
    graph.node[0].device_configurations.add(configuration_id="c")
    graph.value_info.append(helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, [1]))
    seq = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    graph.input.append(seq)
    graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    graph.initializer.append(helper.make_tensor("typed", TensorProto.BFLOAT16, [2], [1.5, 2.0]))
    graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"\xff"]))
    graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    values = numpy_helper.from_array(np.ones(2, np.float32), "sparse")
    places = numpy_helper.from_array(np.array([1, 3]), "")
    graph.sparse_initializer.append(SparseTensorProto(values=values, indices=places, dims=[2, 3]))
    graph.quantization_annotation.append(TensorAnnotation(tensor_name="w"))
    inner = GraphProto(name="inner", node=[helper.make_node("Add", ["w", "x"], ["z"])])
    inner.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    outer = GraphProto(name="outer", node=[helper.make_node("If", ["c2"], ["q"], then_branch=inner, else_branch=inner)])
    outer.output.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, None))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph.input.append(helper.make_tensor_value_info("c2", TensorProto.BOOL, []))
    graph.node.append(helper.make_node("If", ["c"], ["r"], then_branch=outer, else_branch=outer))
    graph.node.append(helper.make_node("f", ["r", ""], ["", "t"], domain="own"))
    graph.node[-1].attribute.append(AttributeProto(name="empty", type=AttributeProto.FLOATS))
    body = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(
        helper.make_function("own", "f", ["a", "n"], ["u", "b"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.training_info.append(TrainingInfoProto(algorithm=inner))
    return model


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32])
def test_narrow_positions_of_a_sparse_weight_are_read_and_kept(kind: type[np.signedinteger]) -> None:
    """ONNX has int64; ONNX Runtime reads others, and writes the narrowest into a model that it optimised."""
    model = _rich()
    places = numpy_helper.from_array(np.array([1, 3], kind), "")
    model.graph.sparse_initializer[0].indices.CopyFrom(places)
    found = from_onnx(model)
    data = found.weight["sparse"].data
    assert data is not None
    assert data.numpy().tolist() == [[0, 1, 0], [1, 0, 0]]
    assert to_onnx(found).graph.sparse_initializer[0].indices == places


@pytest.mark.essential
def test_everything_is_kept() -> None:
    model = _rich()
    graph = from_onnx(model)
    assert graph.nodes[1].captures == ("c2", "w", "x") * 2
    dense = graph.weight["sparse"].data
    assert dense is not None
    assert dense.numpy().tolist() == [[0, 1, 0], [1, 0, 0]]
    document = to_json(graph)
    VALIDATOR.validate(document)
    for again in (to_onnx(graph), to_onnx(read_json(json.dumps(document).encode()))):
        text = again.SerializeToString(deterministic=True)
        again = ModelProto.FromString(text)
        for proto in (model, again):  # the one thing that may differ: how elements are stored
            for tensor in proto.graph.initializer:
                if tensor.name == "typed":
                    assert numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16).tolist() == [1.5, 2.0]
        again.graph.initializer[1].CopyFrom(model.graph.initializer[1])
        assert again == model


@pytest.mark.parametrize(
    ("numbers", "kind"), [([*range(70000)], "nodes_ids"), ([0.5] * 70000, "nodes_values"), (["a"] * 70000, "names")]
)
def test_lists_as_long_as_those_of_trees_are_carried_as_bytes(numbers: list[int | float | str], kind: str) -> None:
    """As numbers, 194 MB of trees took 4.3 GB."""
    trees = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="own", **{kind: numbers, "few": [1, 2]})
    held = helper.make_node("Constant", [], ["x"], value_ints=[*range(70000)])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(helper.make_graph([held, trees], "g", [], [y]), opset_imports=opsets)
    graph = from_onnx(model)
    assert isinstance(graph.nodes[1].attributes[kind], OpaqueAttribute)
    assert graph.nodes[1].attributes["few"] == (1, 2)
    assert not isinstance(graph.nodes[0].attributes["value_ints"], OpaqueAttribute)
    for again in (to_onnx(graph), to_onnx(read_json(json.dumps(to_json(graph)).encode()))):
        assert again.graph.node[1] == model.graph.node[1]


def test_ir_version_3_lists_weights_as_inputs_and_they_are_constants_all_the_same() -> None:
    model = _model()
    model.ir_version = 3
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    model.graph.initializer.append(weight)
    model.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    graph = from_onnx(model)
    assert [v.name for v in graph.inputs] == ["x"]
    assert "w" in graph.constants
    assert to_onnx(graph) == model
    more = replace(graph, weights=(*graph.weights, constant("new", np.ones(2, np.float32))))
    assert [v.name for v in to_onnx(more).graph.input] == ["w", "x", "new"]


def test_large_weights_stay_on_disk_and_unread(tmp_path: Path) -> None:
    size = 3 << 30
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(size)
        file.seek(size - 4)
        file.write(np.float32(2.5).tobytes())
    model = _model()
    proto = TensorProto(name="w", dims=[size // 4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="big.bin")
    model.graph.initializer.append(proto)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph = load(tmp_path / "m.onnx")
    save(graph, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 10_000
    assert (tmp_path / "out.onnx.data").stat().st_size == size
    assert os.stat(tmp_path / "out.onnx.data").st_blocks * 512 < 100 << 20, "holes were filled"
    found = load(tmp_path / "out.onnx").weight["w"].data
    assert found is not None
    assert found.numpy()[-1] == 2.5


@pytest.mark.parametrize("elements", [1000, 1_000_000])
def test_weights_that_became_shorter_are_an_error(tmp_path: Path, elements: int) -> None:
    graph = replace(from_onnx(_model()), weights=(constant("w", np.arange(elements, dtype=np.float32)),))
    save(graph, tmp_path / "m.onnx", external_above=0)
    found = load(tmp_path / "m.onnx").weight["w"].data
    assert found is not None
    assert found.numpy()[-1] == elements - 1
    os.truncate(tmp_path / "m.onnx.data", 512)
    with pytest.raises(InvalidModel, match=r"m\.onnx\.data: the file was truncated"):
        found.numpy()


def test_saving_over_the_file_one_reads_from(tmp_path: Path) -> None:
    graph = from_onnx(_model())
    graph = replace(graph, weights=(constant("w", np.arange(4096, dtype=np.float32)),))
    save(graph, tmp_path / "m.onnx", external_above=0)
    first = load(tmp_path / "m.onnx")
    save(first, tmp_path / "m.onnx", external_above=0, force=True)
    for found in (first, load(tmp_path / "m.onnx"), pickle.loads(pickle.dumps(load(tmp_path / "m.onnx")))):
        assert structural_hash(found) == structural_hash(graph)


@pytest.mark.essential
def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    graph = from_onnx(_model())
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        save(graph, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_text() == "mine"
    weight = constant("w", np.zeros(4096, np.float32))
    large = replace(graph, weights=(weight,))
    (tmp_path / "n.onnx.data").mkdir()
    with pytest.raises(UsageError, match="a directory"):
        save(large, tmp_path / "n.onnx", external_above=0, force=True)
    with pytest.raises(UsageError, match="No such file"):
        save(graph, tmp_path / "no" / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "n.onnx.data"]


@pytest.mark.essential
def test_random_weights_are_what_the_schema_says() -> None:
    data = RandomWeightData(TensorType(DType.FLOAT32, (3, 4)), 7, 0.5, 1.0)
    expected = np.random.Generator(np.random.PCG64(7)).standard_normal((3, 4), np.float32) * np.float32(
        0.5
    ) + np.float32(1)
    assert np.array_equal(data.numpy(), expected)
    assert data.numpy() is not None
    positive = RandomWeightData(TensorType(DType.FLOAT16, (100,)), 7, 0.5, 1.0, "uniform").numpy()
    assert positive.min() >= 1
    assert positive.dtype == np.float16


@pytest.mark.parametrize("name", ["w", "\0", '"raw": "'])
@pytest.mark.parametrize("count", [64, 65, 66, 67])
def test_a_document_in_pieces_is_the_document(name: str, count: int) -> None:
    """Weights are encoded in pieces: of any length modulo three, under any name, short ones among them."""
    rng = np.random.default_rng(count)
    long, short = constant(name, rng.integers(0, 255, count, np.uint8)), constant("short", np.ones(3, np.float32))
    wide = constant("wide", rng.standard_normal((1 << 20) + count).astype(np.float32))
    outputs = tuple(Value(w.name, w.type) for w in (long, wide, short))
    graph = Graph("g", (), outputs, (replace(long, doc="last"), wide, short), (), {"": 20})
    assert b"".join(whole_document(graph)).decode() == format_document(to_json(graph))


@pytest.mark.parametrize(
    "text", ["NaN", "[-Infinity]", "9" * 401, "[" * 61 + "]" * 61, "[" * 50 + "]" * 50, '"\\ud800"']
)
def test_metadata_that_a_document_cannot_hold_as_a_value_is_text_in_it(text: str) -> None:
    """Deep in a document, too: in the tensor of a node's attribute."""
    metadata = {"x-made": text}
    held = replace(constant("", np.ones(2, np.float32)), metadata=metadata)
    kind = TensorType(DType.FLOAT32, (2,))
    node = Node("n", "Constant", (), ("y",), {"value": held}, metadata=metadata)
    graph = Graph("g", (), (Value("y", kind, metadata=metadata),), (), (node,), {"": 20}, metadata=metadata)
    again = read_json(format_document(to_json(graph)).encode())
    assert [again.metadata, again.outputs[0].metadata, again.nodes[0].metadata] == [metadata] * 3
    assert again.nodes[0].attributes["value"].metadata == metadata  # type: ignore[union-attr]


def test_a_folder_is_no_name_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the one where the process is, whose name is empty."""
    monkeypatch.chdir(tmp_path)
    graph = from_onnx(_rich())
    for folder in (".", "..", tmp_path):
        with pytest.raises(UsageError, match="a file cannot be written there"):
            save(graph, folder, force=True)
