"""The solver of linear programs says nothing where a command's output belongs."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import highspy
import numpy as np
from superopt.runtime.highs import solver

program = highspy.HighsLp()
program.num_col_, program.col_cost_ = 1, np.array([1.0])
program.col_lower_, program.col_upper_ = np.array([2.0]), np.array([3.0])
program.a_matrix_.start_ = np.array([0, 0], np.int32)
made = solver(mip_rel_gap=0.1)
made.passModel(program)
made.run()
assert made.getSolution().col_value == [2.0]
"""


def test_it_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
