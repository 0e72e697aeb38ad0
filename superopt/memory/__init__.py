"""The memory that a graph's activations take: in a runtime as it plans them, and ideally."""

from superopt.memory.arena import Arena, measured_arena
from superopt.memory.copies import Pin, Planned, Written, written
from superopt.memory.fission import Region, Source, grown, heads, tails
from superopt.memory.liveness import Lifetime, alive, lifetimes, unavoidable
from superopt.memory.parts import Split, split
from superopt.memory.planner import ALIGNMENT, Buffer, Plan, block_of, planned
from superopt.memory.remat import ROWS, front
from superopt.memory.remat_ilp import Bound, least_time, plain
from superopt.memory.schedule_plan import (
    Op,
    Step,
    Task,
    Timetable,
    alive_at,
    as_given,
    patient,
    peak_of,
    polished,
    prompt,
)
from superopt.memory.scheduling import Schedule, least_peak
from superopt.memory.shape_guards import OPSET, Guards, measurable
from superopt.memory.sharing import IN_PLACE, NCHWC, RENAMING
from superopt.memory.slicing import Slicing
from superopt.memory.unknown_shapes import best_open, kernel_of

__all__ = [
    "ALIGNMENT", "IN_PLACE", "NCHWC", "OPSET", "RENAMING", "ROWS", "Arena", "Bound", "Buffer", "Guards", "Lifetime",
    "Op", "Pin", "Plan", "Planned", "Region", "Schedule", "Slicing", "Source", "Split", "Step", "Task", "Timetable",
    "Written", "alive", "alive_at", "as_given", "best_open", "block_of", "front", "grown", "heads",
    "kernel_of", "least_peak", "least_time", "lifetimes", "measurable", "measured_arena", "patient",
    "peak_of", "plain", "planned", "polished", "prompt", "split", "tails", "unavoidable", "written",
]  # fmt: skip
