"""Models spelled otherwise, which compute the same: nodes in functions of their own, and sizes that nobody declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import AttributeProto, ModelProto, NodeProto, helper

__all__ = ["SPELLINGS"]

_TOGETHER = 3  # nodes of a function
_DOMAIN = "outlined"


def undeclared(model: ModelProto) -> ModelProto:
    """Sizes have other names, outputs have no shapes, and nothing is said of values inside."""
    made = ModelProto()
    made.CopyFrom(model)
    made.graph.ClearField("value_info")
    for value in made.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"other_{dim.dim_param}"
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made


def outlined(model: ModelProto) -> ModelProto:
    """Each three nodes in a row are a function, which is called."""
    made = ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(made.ir_version, 8)
    made.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    nodes: list[NodeProto] = []
    rest = list(model.graph.node)
    while rest:
        group, rest = rest[:_TOGETHER], rest[_TOGETHER:]
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for n in group for a in n.attribute):
            nodes += group
            continue
        nodes.append(_called(made, group, [*rest, *model.graph.node[: len(model.graph.node) - len(rest)]]))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _called(made: ModelProto, group: Sequence[NodeProto], others: Sequence[NodeProto]) -> NodeProto:
    """A call of a new function of these nodes."""
    own = {o for n in group for o in n.output if o}
    reads = list(dict.fromkeys(i for n in group for i in n.input if i and i not in own))
    outside = [n for n in others if n not in group]
    wanted = {i for n in outside for i in _read(n)} | {v.name for v in made.graph.output}
    gives = [o for n in group for o in n.output if o in wanted]
    name = f"F{len(made.functions)}"
    opsets = [o for o in made.opset_import if o.domain != _DOMAIN]
    made.functions.append(helper.make_function(_DOMAIN, name, reads, gives, list(group), opsets))
    return helper.make_node(name, reads, gives, name=f"call{len(made.functions)}", domain=_DOMAIN)


def _read(node: NodeProto) -> set[str]:
    """What a node reads, in its subgraphs too."""
    bodies = [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]
    return {i for i in node.input if i} | {v.name for b in bodies for v in b.output} | {
        i for b in bodies for n in b.node for i in _read(n)
    }  # fmt: skip


SPELLINGS: Mapping[str, Callable[[ModelProto], ModelProto]] = {"undeclared": undeclared, "outlined": outlined}
