"""An attack from a seed: the group and the motif in turn, everything else drawn."""

from __future__ import annotations

import numpy as np
import onnx

from attacker import blocks, branches, folding, ranges, rounding, structure  # noqa: F401  (each registers its motifs)
from attacker.build import Attack, Build
from attacker.feeds import feeds
from attacker.registry import MOTIFS, SINGLE
from attacker.sessions import open_session, run

GROUPS = tuple(MOTIFS)
DTYPES = ("float32", "float32", "float32", "float64", "float16")
OPSETS = tuple(range(13, 22))
ROWS = 600
TERSE = ("folding", "rounding", "ranges")  # motifs of few nodes


def generate(seed: int, group: str | None = None) -> Attack:
    """The attack of a seed.

    Where ONNX Runtime has no kernel for what was drawn in another type, the same is built in float32.

    Args:
        seed: any non-negative integer.
        group: instead of the one whose turn it is.
    """
    chosen = group or GROUPS[seed % len(GROUPS)]
    names = list(MOTIFS[chosen])
    name = names[seed // (1 if group else len(GROUPS)) % len(names)]
    dtype = "float32" if name in SINGLE else DTYPES[int(np.random.default_rng([seed, 1]).integers(len(DTYPES)))]
    try:
        made = _built(seed, chosen, name, dtype)
        if dtype == "float32" or _runs(made.model):
            return made
    except Exception:  # as in _runs
        if dtype == "float32":
            raise
    return _built(seed, chosen, name, "float32")


def _built(seed: int, group: str, name: str, dtype: str) -> Attack:
    rng = np.random.default_rng([seed, 2])
    b = Build(rng, dtype=dtype, opset=int(rng.choice(OPSETS)))
    b.rows = ROWS if group in ("rounding", "ranges") and b.maybe(0.4) else 2
    MOTIFS[group][name](b)
    if group in TERSE and b.maybe():
        _carried(b)
    return ranked(Attack(seed, group, name, b.model(), tuple(b.specs), dict(b.sizes)))


def ranked(made: Attack) -> Attack:
    """The attack with outputs of known rank, which ONNX's checker wants."""
    missing = [v for v in made.model.graph.output if not _ranked(v)]
    if missing:
        _rank(made, missing)
    return made


def _carried(b: Build) -> None:
    """Put movements that cancel behind an output, so that there is something to rewrite whatever the motif allows."""
    place = int(b.rng.integers(len(b.outputs)))
    name, dtype = b.outputs[place]
    if name not in {i.name for i in b.inputs}:
        moved = b.op("Squeeze", b.op("Unsqueeze", b.op("Identity", name), b.ints(0)), b.ints(0))
        b.outputs[place] = (moved, dtype)


def _ranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape")


def _rank(made: Attack, missing: list[onnx.ValueInfoProto]) -> None:
    """Give the outputs whose shape ONNX does not infer (and its checker wants) the rank that they have."""
    session = open_session(made.model, optimised=False)
    values = run(session, next(feeds(made, 1)))
    for value in missing:
        for axis in range(np.asarray(values[value.name]).ndim):
            value.type.tensor_type.shape.dim.add().dim_param = f"{value.name}_{axis}"
        value.type.tensor_type.shape.SetInParent()


def _runs(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
        open_session(model, optimised=False)
    except Exception:  # ONNX Runtime raises many kinds; any of them means that float32 is built instead
        return False
    return True
