"""The only composition: load → search → check → race → export."""

from __future__ import annotations

from superopt.pipeline.learning import learn_from
from superopt.pipeline.optimise import EFFORTS, Options, Progress, Result, load, optimize
from superopt.pipeline.racing import measure
from superopt.pipeline.studies import cost, inspect

__all__ = ["EFFORTS", "Options", "Progress", "Result", "cost", "inspect", "learn_from", "load", "measure", "optimize"]
