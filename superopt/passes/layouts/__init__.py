"""Layouts: each operator on operands in the order of axes at which the program takes the least time.

A Transpose of a program is a choice that its exporter made. Here the layouts of all values are chosen at once, because
a Transpose goes only if all operators between it and another change together.
"""

from __future__ import annotations

from superopt.extraction.enode_costs import ENodeCostModel
from superopt.passes.layouts.layout_selection import POLICY, LayoutPolicy, chosen_forms, transposes_of
from superopt.passes.layouts.transpose_insertion import with_forms
from superopt.program.graph_program import GraphProgram
from superopt.regions.replay import FreshNames

__all__ = ["with_fewer_transposes"]


def with_fewer_transposes(
    program: GraphProgram, pricer: ENodeCostModel, names: FreshNames, policy: LayoutPolicy = POLICY
) -> GraphProgram | None:
    """The program with other layouts and far fewer Transposes; ``None`` where no choice of layouts saves as many.

    Args:
        program: the steps.
        pricer: of operators.
        names: of new values.
        policy: limits.
    """
    chosen = chosen_forms(program, pricer, policy)
    if chosen is None:
        return None
    found = with_forms(program, chosen, names)
    return found if len(transposes_of(found)) <= policy.left * len(transposes_of(program)) else None
