"""Which kernels should not know the sizes of what they make, for the smallest block.

ONNX Runtime keeps a dead buffer for the next value of the same sizes (:mod:`superopt.memory.runtime_memory_planner`):
where it knows them, a buffer waits, perhaps to the end, while others are alive; where it does not, nothing is worked on
in place. So for each kernel it is a choice, and the block of each choice can be simulated: kernels alike are opened or
closed together, and then one by one, while that gains something. From all of them open and from none, since what holds
the block in several places is seen only when all are open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.memory.inplace_kernels import NCHWC, RENAMING
from superopt.memory.runtime_memory_planner import ALIGNMENT, planned

__all__ = ["best_open", "kernel_of"]

_WORK = 200_000  # nodes of plans that are simulated: three seconds


def kernel_of(ran: Graph) -> dict[str, str]:
    """By value, the first result of the kernel in whose memory it is; inputs and what renames them are left out."""
    found: dict[str, str] = {}
    for node in ran.nodes:
        renames = (node.domain, node.op) in RENAMING and node.inputs[0] not in ran.constants
        if renames and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]]
        elif not renames:
            found.update((o, node.outputs[0]) for o in node.outputs if o)
    return found


def best_open(ran: Graph, types: Mapping[str, TensorType], closed: Set[str] = frozenset()) -> frozenset[str]:
    """What kernels make whose sizes are best hidden, by their first results; nothing where that gains nothing.

    Args:
        ran: a lowered graph whose nodes stand in the order of execution.
        types: of its values.
        closed: first results of kernels that need to know them.
    """
    return _Search(ran, types, closed).best()


class _Search:
    def __init__(self, ran: Graph, types: Mapping[str, TensorType], closed: Set[str]) -> None:
        self.ran, self.types = ran, types
        self.left = _WORK
        self.results = {n.outputs[0]: n.outputs for n in ran.nodes if n.outputs}
        self.single = [g for g in _together(ran, types) if g.isdisjoint(closed)]
        kinds: dict[object, set[str]] = {}
        for group in self.single:
            kinds.setdefault(self._kind(group), set()).update(group)
        self.alike = [frozenset(k) for k in kinds.values()]

    def best(self) -> frozenset[str]:
        none = frozenset[str]()
        everything = none.union(*self.alike)
        ways = [self._descended(start, self.alike) for start in (everything, none)]
        found = min(ways, key=self._cost)
        found = self._descended(found, self.single)
        return found if self._cost(found)[0] < self._cost(none)[0] else none

    def _descended(self, chosen: frozenset[str], groups: Sequence[frozenset[str]]) -> frozenset[str]:
        """What is left when no group, opened or closed, makes it cheaper."""
        cost, improved = self._cost(chosen), True
        while improved and self.left > 0:
            improved = False
            for group in groups:
                other = chosen - group if group <= chosen else chosen | group
                price = self._cost(other)
                if price < cost:
                    chosen, cost, improved = other, price, True
        return chosen

    def _cost(self, chosen: frozenset[str]) -> tuple[int, int, int]:
        """The block, bytes that are taken over all steps, and how many kernels are open: each needs views."""
        self.left -= len(self.ran.nodes)
        opened = {o for k in chosen for o in self.results[k]}
        plan = planned(self.ran, self.types, opened=opened)
        return plan.block, sum(plan.occupied), len(chosen)

    def _kind(self, group: frozenset[str]) -> object:
        made = {n.outputs[0]: n for n in self.ran.nodes if n.outputs and n.outputs[0] in group}
        kinds = Counter((n.domain, n.op, self.types.get(o), tuple(self.types.get(i) for i in n.inputs))
                        for o, n in made.items())  # fmt: skip
        return frozenset(kinds.items())


def _together(ran: Graph, types: Mapping[str, TensorType]) -> Iterator[frozenset[str]]:
    """Kernels that are opened or closed as one: those of a chain in the blocked layout, since a view within it would
    copy the value out of the layout and back; the others by themselves. What makes less than a buffer's least size is
    left as it is."""
    chain: dict[str, str] = {}

    def root(name: str) -> str:
        while chain.get(name, name) != name:
            name = chain[name]
        return name

    maker = kernel_of(ran)
    made = {n.outputs[0]: n for n in ran.nodes if n.outputs}
    for node in ran.nodes:
        for name in node.reads if node.domain == NCHWC else ():
            if name in maker and made[maker[name]].domain == NCHWC:
                chain[root(node.outputs[0])] = root(maker[name])
    groups: dict[str, set[str]] = {}
    for name in dict.fromkeys(maker.values()):
        groups.setdefault(root(name), set()).add(name)
    for group in groups.values():
        if any((types[n].nbytes or 0) > ALIGNMENT for n in group if n in types):
            yield frozenset(group)
