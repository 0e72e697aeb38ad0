"""Layouts: each operator on operands in the order of axes at which the program takes the least time.

A Transpose of a program is a choice that its exporter made. Here the layouts of all values are chosen at once, because
a Transpose goes only if all operators between it and another change together.
"""

from superopt.passes.layouts.choice import chosen_forms
from superopt.passes.layouts.writing import with_forms

__all__ = ["chosen_forms", "with_forms"]
