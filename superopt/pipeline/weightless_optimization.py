"""Optimising a model whose weights stay at home: its topology goes out, a patch comes back, and is checked here.

The *topology* of a model is the model without the elements of its weights: shapes, operators, attributes, integers
(they are shapes, axes and positions) and single numbers. It can be optimised as any graph; what a rule computes from
weights stays in the result as nodes. Such a result is a *patch*: at home it gets the elements by the weights' names,
what only weights flow through is computed, and the whole is compared with the model itself.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.formats.function_inlining import function_names
from superopt.ir.errors import InvalidModel, NotEquivalent, Unsupported, printable
from superopt.ir.graph import Attribute, Graph, Node, OpaqueAttribute, Weight
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import program_of
from superopt.regions.emission import emit
from superopt.verifier.check.differential import CheckResult, check_rewrite

__all__ = ["apply", "topology"]

_NUMBERS = 64  # elements of a list of real attributes up to which they are settings, not parameters
_GROWTH, _SPARE = 4, 1 << 20  # constants that are computed may add so many times the weights, and so many bytes


def topology(graph: Graph) -> Graph:
    """The model without what it has learnt.

    Raises:
        Unsupported: parameters are where they cannot be left out: in a subgraph, a function, or a long list of numbers.
    """
    if functions := function_names(graph):
        raise Unsupported(
            f"the model has functions of its own ({printable(', '.join(functions), 200)})",
            hint="they may hold parameters, so nothing is sent; superopt optimize --functions inline writes none",
        )
    weights = [_bare(w) for w in graph.weights]
    nodes = []
    for node in graph.nodes:
        held = _constant_tensor(node)
        if held is not None and not _says_only_structure(held):
            weights.append(Weight(node.outputs[0], held.type, None))
            continue
        for name, value in node.attributes.items():
            if not _harmless(value):
                raise Unsupported(
                    f"its attribute {printable(name)!r} may hold parameters",
                    where=f"node {printable(node.name)!r} ({printable(node.op)})",
                    hint="a model without weights can be sent only where all of them are weights of the model",
                )
        nodes.append(replace(node, doc="", metadata={}))
    return replace(
        graph, weights=tuple(weights), nodes=tuple(nodes), doc="", metadata={},
        inputs=tuple(replace(v, doc="", metadata={}) for v in graph.inputs),
        outputs=tuple(replace(v, doc="", metadata={}) for v in graph.outputs),
        values=tuple(replace(v, doc="", metadata={}) for v in graph.values), extras={},
    )  # fmt: skip


def _bare(weight: Weight) -> Weight:
    kept = weight.data if _says_only_structure(weight) else None
    return replace(weight, data=kept, doc="", metadata={})


def _says_only_structure(weight: Weight) -> bool:
    elements = weight.type.elements
    if weight.type.dtype.is_integer:  # of an embedding's indices there are many
        return isinstance(elements, int) and elements <= _NUMBERS
    return bool(elements == 1)


def _constant_tensor(node: Node) -> Weight | None:
    """The tensor of a Constant."""
    value = node.attributes.get("value") if node.op == "Constant" and not node.domain else None
    return value if isinstance(value, Weight) else None


def _harmless(value: Attribute) -> bool:
    if isinstance(value, Weight):
        return _says_only_structure(value)
    if isinstance(value, OpaqueAttribute):
        return False
    if isinstance(value, bytes):
        return len(value) <= _NUMBERS
    return not isinstance(value, tuple) or len(value) <= _NUMBERS


def apply(graph: Graph, patch: Graph, *, seed: int = 0, check: bool = True) -> tuple[Graph, CheckResult | None]:
    """Apply a patch to the model that it was made for.

    Args:
        graph: the model, with its weights.
        patch: what was made of its :func:`topology`.
        seed: of the check's inputs.
        check: whether to compare the result with the model.

    Returns:
        The result, and what the check found; ``None`` where there was none.

    Raises:
        InvalidModel: the patch is not of this model. NotEquivalent: the result computes something else.
    """
    for kind, ours, theirs in (("input", graph.inputs, patch.inputs), ("output", graph.outputs, patch.outputs)):
        if [(v.name, v.type) for v in ours] != [(v.name, v.type) for v in theirs]:
            raise InvalidModel(f"the patch is of another model: its {kind}s differ")
    filled = replace(patch, weights=tuple(_filled(graph, patch)))
    made = replace(
        _folded(filled), name=graph.name, doc=graph.doc, metadata=graph.metadata, extras=graph.extras
    )  # fmt: skip
    if not check:
        return made, None
    found = check_rewrite(graph, made, seed=seed)
    if found.verdict == "failed":
        raise NotEquivalent(f"the result computes something else: {found.reason}", hint="nothing was written")
    return made, found


def _filled(graph: Graph, patch: Graph) -> list[Weight]:
    """The patch's weights with their elements."""
    known: dict[str, Weight] = dict(graph.weight)
    known |= {n.outputs[0]: w for n in graph.nodes if (w := _constant_tensor(n)) is not None}
    found = []
    for weight in patch.weights:
        ours = known.get(weight.name)
        if weight.data is not None and ours is None:  # a constant that the patch makes
            found.append(weight)
            continue
        if ours is None or ours.data is None or ours.type != weight.type:
            what = "has no elements here" if ours is not None and ours.data is None else "is not the model's"
            raise InvalidModel(f"the patch is of another model: its weight {printable(weight.name)!r} {what}")
        found.append(replace(weight, data=ours.data, doc=ours.doc, metadata=ours.metadata))
    return found


def _folded(graph: Graph) -> Graph:
    """The graph with what only weights flow through computed, where that does not make much more of them; each such
    weight says how it was computed, so that ``superopt verify`` can prove it."""
    program = program_of(graph, infer(graph))
    if program.computed_constants is None and not program.constant:
        return graph
    most = _GROWTH * graph.weight_bytes + _SPARE
    return emit(program, REGISTRY, most).graph
