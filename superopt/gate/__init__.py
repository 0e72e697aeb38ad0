"""The corpus as a gate: run models, compare with a recorded baseline, name what is at fault."""

from __future__ import annotations

from superopt.gate.baseline import read_run, run_data, updated, write_run
from superopt.gate.judge import judge, run_corpus
from superopt.gate.settings import CorpusSettings, beside_models, models_of

__all__ = [
    "CorpusSettings",
    "beside_models",
    "judge",
    "models_of",
    "read_run",
    "run_corpus",
    "run_data",
    "updated",
    "write_run",
]
