"""In which order operands are made, for the smallest block.

ONNX Runtime walks back from the results (:mod:`superopt.memory.order`): of a node's operands, the one whose maker has
the greatest number is made first, with all that it needs, before the next. Who has the greatest number, a file can say
for what is run as it is written: operands read through views, which are nodes of the file, are made in the opposite
order of these. So an order is a choice for each such node, and the block of each choice is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from superopt.ir.graph import Graph, Node
from superopt.ir.types import TensorType
from superopt.memory.order import walked
from superopt.memory.planner import planned
from superopt.memory.scheduling import least_peak
from superopt.memory.sharing import RENAMING

__all__ = ["best_walk"]

_WORK = 200_000  # nodes of plans that are simulated: three seconds
_STARTS = 2  # orders that are made better, the best of those that are begun with


def best_walk(
    ran: Graph, types: Mapping[str, TensorType], known: Mapping[str, TensorType], free: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Of the nodes whose operands may be made in any order, the orders that give the smallest block; nothing where none
    gives a smaller one.

    Args:
        ran: a lowered graph whose nodes stand in the order of execution.
        types: of its values.
        known: those of them that the runtime knows before it runs.
        free: by first result, the operands of these nodes that other nodes make.
    """
    return _Search(ran, types, known, free).best()


class _Search:
    def __init__(
        self, ran: Graph, types: Mapping[str, TensorType], known: Mapping[str, TensorType],
        free: Mapping[str, Sequence[str]],
    ) -> None:  # fmt: skip
        self.ran, self.types, self.known = ran, types, known
        self.left = 0
        self.maker = {o: i for i, n in enumerate(ran.nodes) for o in n.outputs if o}
        self.reads = [sorted({self.maker[n] for n in node.reads if n in self.maker}) for node in ran.nodes]
        read = {i for before in self.reads for i in before}
        self.last = [i for i in range(len(ran.nodes)) if i not in read]
        self.free = {o: tuple(sorted(operands, key=self.maker.__getitem__)) for o, operands in free.items()}

    def best(self) -> dict[str, Sequence[str]]:
        given = planned(self.ran, self.types, self.known).block
        starts = sorted(self._starts(), key=self._cost)[:_STARTS]
        ways = [self._descended(start, _WORK // _STARTS) for start in starts]
        cost, found = min(ways, key=lambda w: w[0])
        return dict(found) if cost[0] < given else {}

    def _starts(self) -> Iterator[Mapping[str, Sequence[str]]]:
        """Operands in the order in which they are made where least is alive, and all of them the other way round."""
        inputs, outputs = [v.name for v in self.ran.inputs], [v.name for v in self.ran.outputs]
        held = {*inputs, *outputs}

        def size(name: str) -> int:
            return 0 if name in held or name not in self.types else self.types[name].nbytes or 0

        def renames(node: Node) -> bool:
            return (node.domain, node.op) in RENAMING and node.inputs[0] not in self.ran.constants

        least = least_peak(self.ran.nodes, size, inputs, outputs, renames, work=_WORK).order
        place = {o: at for at, i in enumerate(least) for o in self.ran.nodes[i].outputs}
        for order in (self.free, {o: tuple(sorted(n, key=place.__getitem__)) for o, n in self.free.items()}):
            yield order
            yield {o: operands[::-1] for o, operands in order.items()}

    def _descended(
        self, chosen: Mapping[str, Sequence[str]], work: int
    ) -> tuple[tuple[int, int], Mapping[str, Sequence[str]]]:
        """What is left when no operand that is made before its fellows makes it cheaper."""
        self.left = work
        cost, improved = self._cost(chosen), True
        while improved:
            improved = False
            for node in chosen:
                for operand in chosen[node][1:]:
                    if self.left <= 0:
                        return cost, chosen
                    other = {**chosen, node: (operand, *(o for o in chosen[node] if o != operand))}
                    price = self._cost(other)
                    if price < cost:
                        chosen, cost, improved = other, price, True
        return cost, chosen

    def _cost(self, chosen: Mapping[str, Sequence[str]]) -> tuple[int, int]:
        """The block, and bytes that are taken over all steps."""
        self.left -= len(self.ran.nodes)
        nodes = tuple(self.ran.nodes[i] for i in self._walked(chosen))
        plan = planned(replace(self.ran, nodes=nodes), self.types, self.known)
        return plan.block, sum(plan.occupied)

    def _walked(self, chosen: Mapping[str, Sequence[str]]) -> list[int]:
        """The nodes in the order of the walk, of which the operands that are made first are the last to be read."""
        before = [reads[::-1] for reads in self.reads]
        for made, operands in chosen.items():
            place = self.maker[made]
            before[place] = list(dict.fromkeys([*(self.maker[o] for o in operands), *self.reads[place]]))[::-1]
        return walked(self.last[::-1], before)
