"""``slim`` and ``simplify``: the calls of OnnxSlim and onnxsim, for exporters that call one of them.

Both return a model whenever they are given a valid one: the optimised model, or the input where nothing better was
found or something failed, and then a warning says why.
"""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from superopt import formats
from superopt.ir.errors import InvalidOption, printable, superopt_error
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import SizePolynomial, symbols
from superopt.ir.types import TensorType
from superopt.pipeline.integrations import EFFORT, TIME_LIMIT
from superopt.pipeline.keyword_options import Settings
from superopt.pipeline.optimization import is_proto, load, optimize

if TYPE_CHECKING:
    import onnx

__all__ = ["simplify", "slim", "slim_graph", "with_input_shapes"]

_LOG = logging.getLogger("superopt")

Model: TypeAlias = "str | Path | bytes | onnx.ModelProto | Graph"
Shapes: TypeAlias = Mapping[str, Sequence[int]] | Sequence[str] | None

# Keywords of the two tools that have no counterpart: the result is always checked, shapes are always inferred, and
# rules are left out by ``settings={"disable": [...]}``.
_WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    "slim": frozenset({
        "model_check", "model_check_inputs", "no_shape_infer", "skip_optimizations", "skip_fusion_patterns",
        "size_threshold", "dump_to_disk", "save_as_external_data", "verbose",
    }),
    "simplify": frozenset({
        "check_n", "check_rtol", "check_atol", "input_data", "input_fill", "test_input_shapes", "perform_optimization",
        "skip_fuse_bn", "skipped_optimizers", "extra_optimizers", "skip_constant_folding", "skip_shape_inference",
        "dynamic_input_shape", "include_subgraph", "tensor_size_threshold", "mutable_initializer",
        "initializers_as_constants", "import_custom_schemas", "certify", "providers", "gemm_fusion_backend",
        "check_hazards", "check_gradients", "gradient_precision", "range_opt", "external_data_threshold", "profile",
        "ort_profile", "merge_ort_profile",
    }),
}  # fmt: skip
# Keywords that would change the model, and what to do instead.
_REFUSED: Mapping[str, Mapping[str, str]] = {
    "slim": {
        "inputs": "cut the model before, for example with onnx.utils.extract_model",
        "outputs": "cut the model before, for example with onnx.utils.extract_model",
        "dtype": "convert the model before, for example with onnxconverter_common.float16",
        "inspect": "call superopt inspect MODEL",
    },
    "simplify": {
        "unused_output": "remove the outputs before",
        "custom_lib": "leave it out: unknown operators are carried through",
        "custom_rewriter": "call the rewriter before", "function_rewrite_rules": "call the rewriter before",
        "target_opset_version": "convert the model before, with onnx.version_converter",
    },
}  # fmt: skip


def slim(
    model: Model, output: str | Path | None = None, *, time_limit: float | None = TIME_LIMIT, effort: str = EFFORT,
    input_shapes: Shapes = None, output_model: str | Path | None = None, settings: Settings | None = None,
    **keywords: Any,
) -> onnx.ModelProto | None:  # fmt: skip
    """A faster model in place of ``onnxslim.slim(model)``.

    ``superopt.slim(onnx.load("model.onnx"))`` returns a model; ``superopt.slim("model.onnx", "slim.onnx")`` writes one.

    Args:
        model: a path, bytes, an ONNX ModelProto or a Graph. A ModelProto is not changed.
        output: where the result is written; an older file is replaced.
        time_limit: seconds, from loading to the result.
        effort: as of :func:`superopt.optimize`.
        input_shapes: sizes that inputs have from now on: ``{"x": [1, 3, 224, 224]}`` or ``["x:1,3,224,224"]``.
        output_model: OnnxSlim's name for ``output``.
        settings: further options of :func:`superopt.optimize`.
        **keywords: OnnxSlim's other keywords. Those without a counterpart have no effect.

    Returns:
        The model; ``None`` where it is written.

    Raises:
        InvalidModel: the model is broken. InvalidOption: an unknown keyword, or one that would change the model.
        UsageError: what is given is no model.
    """
    _check_keywords("slim", keywords)
    target = output if output is not None else output_model
    loaded = load(model)
    graph = with_input_shapes(loaded, input_shapes)
    result, _ = _optimized(graph, time_limit, effort, settings)
    if target is None:
        return model if result is loaded and is_proto(model) else formats.to_onnx(result)
    formats.save(result, Path(target), force=True)
    return None


def simplify(
    model: Model, *positional: Any, time_limit: float | None = TIME_LIMIT, effort: str = EFFORT,
    overwrite_input_shapes: Shapes = None, input_shapes: Shapes = None, inline_functions: bool = False,
    output_path: str | Path | None = None, settings: Settings | None = None, **keywords: Any,
) -> tuple[onnx.ModelProto, bool]:  # fmt: skip
    """A faster model in place of ``onnxsim.simplify(model)``.

    Args:
        model: a path, bytes, an ONNX ModelProto or a Graph. A ModelProto is not changed.
        *positional: onnxsim's second and later arguments, in its order; their names have the same effect.
        time_limit: seconds, from loading to the result.
        effort: as of :func:`superopt.optimize`.
        overwrite_input_shapes: sizes that inputs have from now on.
        input_shapes: onnxsim's older name for it.
        inline_functions: whether the bodies of the model's own functions take the place of calls.
        output_path: where the result is written as well.
        settings: further options of :func:`superopt.optimize`.
        **keywords: onnxsim's other keywords. Those without a counterpart have no effect.

    Returns:
        The model, and whether it was checked to compute what the input computes. The input is returned, with True,
        where nothing better was found, and with False where it could not be optimised.

    Raises:
        InvalidModel: the model is broken. InvalidOption: an unknown keyword, or one that would change the model.
        UsageError: what is given is no model.
    """
    if len(positional) > len(_POSITIONAL):
        raise InvalidOption(f"simplify takes at most {1 + len(_POSITIONAL)} arguments by position", option="simplify")
    named = dict(zip(_POSITIONAL, positional, strict=False))
    shapes = named.pop("overwrite_input_shapes", None) or overwrite_input_shapes or input_shapes
    _check_keywords("simplify", {**named, **keywords})
    graph = with_input_shapes(load(model), shapes)
    inlined: Settings = {"functions": "inline"} if inline_functions else {}
    result, done = _optimized(graph, time_limit, effort, {**inlined, **(settings or {})})
    if output_path is not None:
        formats.save(result, Path(output_path), force=True)
    return formats.to_onnx(result), done


# onnxsim's arguments by position, after the model.
_POSITIONAL = (
    "check_n", "perform_optimization", "skip_fuse_bn", "overwrite_input_shapes", "test_input_shapes",
    "skipped_optimizers", "skip_constant_folding", "skip_shape_inference", "input_data", "dynamic_input_shape",
    "custom_lib", "include_subgraph", "unused_output", "tensor_size_threshold", "mutable_initializer",
)  # fmt: skip


def slim_graph(
    graph: Graph, time_limit: float | None, effort: str, settings: Settings | None = None
) -> tuple[Graph, bool, str]:  # fmt: skip
    """The optimised graph, whether that went well, and what there is to say of it in a sentence.

    An exporter has a valid model in its hands: whatever fails here must not take it away. The graph itself is returned
    then, and the sentence says why.

    Raises:
        InvalidOption: a setting is wrong.
    """
    options: dict[str, Any] = {"time_limit": time_limit, "effort": effort, **(settings or {})}
    try:
        result = optimize(graph, **options)
    except InvalidOption:
        raise
    except Exception as error:
        _LOG.debug("an optimisation failed, and its input is returned", exc_info=True)
        return graph, False, f"the model is returned as it was: {superopt_error(error)}"
    return result.graph, True, result.report.summary


def _optimized(
    graph: Graph, time_limit: float | None, effort: str, settings: Settings | None
) -> tuple[Graph, bool]:  # fmt: skip
    """As :func:`slim_graph`; a warning says why the graph is returned as it was."""
    result, done, text = slim_graph(graph, time_limit, effort, settings)
    if not done:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return result, done


def _check_keywords(function: str, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that are unknown, or that ask for another model.

    Raises:
        InvalidOption: see above; the message says what to do.
    """
    refused, inert = _REFUSED[function], _WITHOUT_EFFECT[function]
    for name, value in keywords.items():
        if name in inert or (name in refused and not value):
            continue
        if name in refused:
            raise InvalidOption(f"superopt.{function} does not do {name!r}", option=name, hint=refused[name])
        close = difflib.get_close_matches(name, [*inert, *refused], 1, 0.6)
        raise InvalidOption(
            f"superopt.{function} has no option {printable(name)!r}", option=name, suggestion=close[0] if close else "",
            hint="" if close else "options of superopt.optimize go into settings={...}",
        )  # fmt: skip


def with_input_shapes(graph: Graph, shapes: Shapes) -> Graph:
    """The graph with sizes of its inputs fixed.

    Raises:
        InvalidOption: an input is not there, or does not take the shape.
    """
    binding: dict[str, int] = {}
    for name, sizes in _parsed_shapes(shapes).items():
        value = next((v for v in graph.inputs if v.name == name), None)
        if value is None:
            known = printable(", ".join(v.name for v in graph.inputs), 200)
            raise InvalidOption(
                f"the model has no input {printable(name)!r}", option="input_shapes", hint=f"it has {known}"
            )
        dims = value.type.shape if isinstance(value.type, TensorType) else None
        if dims is None or len(dims) != len(sizes):
            raise InvalidOption(f"input {printable(name)!r} has no {len(sizes)} dimensions", option="input_shapes")
        for dim, size in zip(dims, sizes, strict=True):
            fixed = binding.get(str(dim), dim) if isinstance(dim, SizePolynomial) else dim
            if isinstance(fixed, SizePolynomial) and symbols(fixed) == {str(fixed)}:
                binding[str(fixed)] = size
            elif fixed != size:
                raise InvalidOption(
                    f"input {printable(name)!r} has {fixed} where {size} is given", option="input_shapes",
                    hint="only open dimensions can be fixed",
                )  # fmt: skip
    if not binding:
        return graph
    from superopt.frontend.autodiff.graph_extension import at_sizes  # here, because few calls fix sizes

    return at_sizes(graph, binding).checked()


def _parsed_shapes(shapes: Shapes) -> dict[str, list[int]]:
    """Shapes by the names of inputs.

    Raises:
        InvalidOption: it is neither a dictionary nor a list of ``"name:1,3,224,224"``.
    """
    if shapes is None:
        return {}
    try:
        if isinstance(shapes, Mapping):
            parsed = {str(name): [int(size) for size in sizes] for name, sizes in shapes.items()}
        else:
            pairs = [text.rsplit(":", 1) for text in ([shapes] if isinstance(shapes, str) else shapes)]
            parsed = {name: [int(size) for size in sizes.split(",")] for name, sizes in pairs}
    except (ValueError, TypeError, AttributeError):
        parsed = {"": [0]}
    if any(size < 1 for sizes in parsed.values() for size in sizes):
        raise InvalidOption(
            "takes positive sizes by the names of inputs", where="input_shapes", option="input_shapes",
            hint='write {"x": [1, 3, 224, 224]} or ["x:1,3,224,224"]',
        )  # fmt: skip
    return parsed
