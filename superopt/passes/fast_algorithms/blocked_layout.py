"""Where ONNX Runtime's blocked layout ends: what changes of layout a model pays, with some Convs written as forms.

Inside, images are kept in blocks of channels: from a Conv on, through whatever else can run so. What cannot gets them
back with channels second, and a Conv after it puts them into blocks again. A form begins and ends with a Transpose of
its own, which the runtime makes one with such a change, and strikes out where two forms meet.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from superopt.cost.cost_model import CostModel
from superopt.ir.graph import Graph, Node
from superopt.ir.types import TensorType
from superopt.ops.infer import Typing

__all__ = ["Place", "changes", "changes_us"]

_RANK = 4  # axes of images that are kept in blocks
_FEWEST = 8  # channels of a Conv's input below which it reads them as they are
_LAST = (0, 2, 3, 1)  # channels last


@dataclass(frozen=True)
class Place:
    """A form: the nodes that it stands for, one after the other, and the image that it reads.

    ``begins`` is equal for forms of one image that begin with one Transpose.
    """

    nodes: tuple[Node, ...]
    image: str
    begins: Hashable = None

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]


def changes(graph: Graph, typing: Typing, forms: Sequence[Place], blocked: frozenset[str]) -> Mapping[str, int]:
    """By value, how often its layout is changed beyond what forms count themselves; less where forms meet.

    Args:
        graph: the model, forms not written.
        typing: its types.
        forms: the Convs that are to be forms.
        blocked: operators that the runtime runs in blocks where their operands are; none, and nothing changes.
    """
    if "Conv" not in blocked:
        return {}
    inside = {id(node) for form in forms for node in form.nodes}
    begin = {(id(form.nodes[0]), form.image): form.begins or id(form) for form in forms}
    made = {form.output for form in forms}
    held: set[str] = set()
    running: set[int] = set()  # nodes that run in blocks

    def is_image(name: str) -> bool:
        kind = typing.types.get(name)
        return kind is not None and kind.rank == _RANK

    for node in graph.nodes:
        if id(node) in inside or node.domain or node.op not in blocked:
            continue
        data = [n for n in node.reads if n not in graph.constants]
        if all(map(is_image, data)) and (node.op == "Conv" or (data and all(n in held for n in data))):
            held.update(node.outputs)
            running.add(id(node))
    ends = dict.fromkeys(v.name for v in graph.outputs)
    found: dict[str, int] = {}
    for name in dict.fromkeys((*graph.consumers, *ends)):
        if not is_image(name) or name in graph.constants:
            continue
        readers = graph.consumers.get(name, ())
        first = {begin[id(r), name] for r in readers if (id(r), name) in begin}
        outside = [r for r in readers if id(r) not in inside]
        blocks = [r for r in outside if id(r) in running and _channels(typing, name) >= _FEWEST]
        plain = len(outside) > sum(id(r) in running for r in outside) or name in ends
        if name in held:
            count = int(plain)
        elif name in made:
            count = int(bool(blocks) and plain) - int(not blocks and not plain) - len(first)
        else:
            count = int(bool(blocks))
        if count:
            found[name] = count
    return found


def changes_us(graph: Graph, typing: Typing, forms: Sequence[Place], costs: CostModel) -> float:
    """What these changes take in microseconds: each as long as the image's Transpose."""
    total = 0.0
    for name, count in changes(graph, typing, forms, costs.backend.blocked).items():
        kind = typing.types[name]
        assert kind is not None
        total += count * _transpose_us(kind, costs)
    return total


def _transpose_us(kind: TensorType, costs: CostModel) -> float:
    assert kind.shape is not None
    made = TensorType(kind.dtype, tuple(kind.shape[axis] for axis in _LAST))
    return costs.expected("Transpose", {"perm": _LAST}, [kind], [made]).us


def _channels(typing: Typing, name: str) -> int:
    kind = typing.types.get(name)
    size = kind.shape[1] if kind is not None and kind.shape is not None else 0
    return size if isinstance(size, int) else 0
