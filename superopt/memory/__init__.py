"""The memory that a graph's activations take: in a runtime as it plans them, and ideally."""

from superopt.memory.alive import Lifetime, alive, lifetimes, unavoidable
from superopt.memory.arena import Arena, measured_arena
from superopt.memory.copies import OPSET, Pin, Planned, Written, written
from superopt.memory.fission import Region, Source, grown, heads, tails
from superopt.memory.parts import Split, split
from superopt.memory.planner import ALIGNMENT, Buffer, Plan, planned
from superopt.memory.recompute import ROWS, Op, Step, Task, Timetable, front, peak_of
from superopt.memory.schedule import Schedule, least_peak
from superopt.memory.sharing import IN_PLACE, RENAMING
from superopt.memory.slicing import Slicing

__all__ = [
    "ALIGNMENT", "IN_PLACE", "OPSET", "RENAMING", "ROWS", "Arena", "Buffer", "Lifetime", "Op", "Pin", "Plan", "Planned",
    "Region", "Schedule", "Slicing", "Source", "Split", "Step", "Task", "Timetable", "Written", "alive", "front",
    "grown", "heads", "least_peak", "lifetimes", "measured_arena", "peak_of", "planned", "split", "tails",
    "unavoidable", "written",
]  # fmt: skip
