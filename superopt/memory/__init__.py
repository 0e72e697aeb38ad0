"""The memory that a graph's activations take: in a runtime as it plans them, and ideally."""

from superopt.memory.alive import Lifetime, alive, lifetimes, unavoidable
from superopt.memory.arena import Arena, measured_arena
from superopt.memory.planner import ALIGNMENT, Buffer, Plan, planned
from superopt.memory.schedule import Schedule, least_peak
from superopt.memory.sharing import IN_PLACE, RENAMING

__all__ = [
    "ALIGNMENT", "IN_PLACE", "RENAMING", "Arena", "Buffer", "Lifetime", "Plan", "Schedule", "alive", "least_peak",
    "lifetimes", "measured_arena", "planned", "unavoidable",
]  # fmt: skip
