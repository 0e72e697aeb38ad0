"""What each number of a policy decides: half of it, and twice, on the same models under recorded prices.

``python -m lab.sensitivity --json FILE [MODEL...]`` runs every numeric field of every policy of the cost model, the
search and the pipeline, each variant in a process of its own with an empty cache. A row says how many models come back
otherwise, the geometric mean of their modelled ratios, and CPU seconds, at half, as it is, and at twice. Rows that the
file has are not run again. A field that only times devices, or only plans memory, cannot show anything here
(``--all`` runs those as well).

``--markdown`` writes the table from the file alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from superopt import formats
from superopt.formats.safe_file_access import replace_file
from superopt.report.corpus import geometric_mean

__all__ = ["POLICIES", "PolicyField", "fields_of", "main", "variant", "with_value"]

# Records whose fields decide results, by module and name; with those that need a device or an objective of memory.
POLICIES = (
    ("superopt.pipeline.acceptance_policy", "POLICY", True),
    ("superopt.pipeline.check_policy", "CHECKS", True),
    ("superopt.passes.control_flow", "POLICY", True),
    ("superopt.passes.integer_kernel_rewrites", "POLICY", True),
    ("superopt.passes.saturation_search", "POLICY", True),
    ("superopt.passes.layouts.layout_selection", "POLICY", True),
    ("superopt.program.graph_program", "CONSTANTS", True),
    ("superopt.egraph.rule_compiler", "POLICY", True),
    ("superopt.passes.weights.lookup_tables", "POLICY", True),
    ("superopt.passes.weights.low_rank", "POLICY", True),
    ("superopt.passes.weights.slice_analysis", "POLICY", True),
    ("superopt.regions.partition", "POLICY", True),
    ("superopt.regions.region_search", "POLICY", True),
    ("superopt.extraction.ilp", "POLICY", True),
    ("superopt.pipeline.runtime_optimizer_faults", "POLICY", True),
    ("superopt.pipeline.shape_defaults", "POLICY", True),
    ("superopt.cost.operator_time_predictor", "PREDICTION", True),
    ("superopt.cost.graph_costs", "POLICY", True),
    ("superopt.cost.control_flow", "POLICY", True),
    ("superopt.cost.cost_model", "PRICING", True),
    ("superopt.cost.cache_model", "CACHES", True),
    ("superopt.pipeline.rematerialization", "PLANS", False),
    ("superopt.pipeline.fission", "POLICY", False),
    ("superopt.passes.mixed_precision.policy", "POLICY", False),
    ("superopt.pipeline.batch", "POLICY", False),
    ("superopt.cost.profile_calibration", "CALIBRATION", False),
    ("superopt.cost.operator_timing", "TIMING", False),
    ("superopt.cost.profile_recorder", "DRIFT", False),
    ("superopt.cost.roofline_ceilings", "PROBES", False),
    ("superopt.cost.cuda_timing", "TIMING", False),
)
_MODELS = (
    "bert", "conv_tasnet", "deep_linear", "efficientnet_b0", "expand_conv", "gru", "llama_2l", "mlp_mixer",
    "mobileone_s0", "segformer", "siamese", "squeezenet", "unet", "yolo_head",
)  # fmt: skip
_FACTORS = (0.5, 2.0)


@dataclass(frozen=True)
class PolicyField:
    """A number of a policy."""

    module: str
    record: str
    name: str
    value: float

    @property
    def key(self) -> str:
        return f"{self.module}:{self.record}.{self.name}"


def fields_of(module: str, record: str) -> list[PolicyField]:
    """The numeric fields of a policy."""
    policy = getattr(importlib.import_module(module), record)
    found = [(f.name, getattr(policy, f.name)) for f in fields(policy)]
    return [
        PolicyField(module, record, n, v) for n, v in found if isinstance(v, int | float) and not isinstance(v, bool)
    ]


def variant(value: float, factor: float) -> float:
    """A number times a factor; an integer stays one, and another one than it was."""
    if not isinstance(value, int):
        return value * factor
    made = round(value * factor)
    return made if made != value else value + (1 if factor > 1 else -1)


def with_value(key: str, value: float) -> None:
    """Give a field another value in this process; everything reads the one record of a policy."""
    where, _, name = key.rpartition(".")
    module, record = where.split(":")
    object.__setattr__(getattr(importlib.import_module(module), record), name, value)


def _rows(models: Sequence[str]) -> dict[str, Any]:
    from lab.golden.golden_results import row_of

    made = {Path(m).stem: row_of(lambda m=m: formats.load(Path(m))) for m in models}  # type: ignore[misc]
    return {n: {"structure": r.structure, "ratio": r.ratio, "seconds": r.cpu_seconds} for n, r in made.items()}


def _run(key: str, value: float | None, models: Sequence[str]) -> dict[str, Any]:
    """The results of the models with a field at a value, in a process of its own."""
    given = ["--one", f"{key}={value!r}"] if value is not None else ["--one", ""]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "lab.sensitivity", *given, *models], capture_output=True, text=True, check=False,
            env={**os.environ, "SUPEROPT_CACHE": cache},
        )  # fmt: skip
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:] or ["no message"]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _summary(found: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        return found
    changed = [n for n, row in found.items() if row["structure"] != base[n]["structure"]]
    return {
        "changed": changed, "ratio": geometric_mean([r["ratio"] for r in found.values()]),
        "seconds": sum(r["seconds"] for r in found.values()),
    }  # fmt: skip


def _wanted(everything: bool) -> Iterator[PolicyField]:
    for module, record, shows in POLICIES:
        if shows or everything:
            yield from fields_of(module, record)


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown, those that decide something first."""
    base = found["base"]
    lines = [
        f"{len(base)} models; modelled ratio {geometric_mean([r['ratio'] for r in base.values()]):.4f}, "
        f"{sum(r['seconds'] for r in base.values()):.0f} CPU s", "",
        "| field | value | half: models, ratio, CPU s | twice: models, ratio, CPU s |", "|---|---|---|---|",
    ]  # fmt: skip

    def cell(row: dict[str, Any]) -> str:
        if "error" in row:
            return f"fails: {row['error'][0]}"
        return f"{len(row['changed'])}, {row['ratio']:.4f}, {row['seconds']:.0f}"

    def weight(item: tuple[str, Any]) -> int:
        return -sum(len(item[1][side].get("changed", "x")) for side in ("half", "twice"))

    for key, row in sorted(found["fields"].items(), key=lambda i: (weight(i), i[0])):
        lines.append(f"| `{key}` | {row['value']:g} | {cell(row['half'])} | {cell(row['twice'])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.sensitivity", description=__doc__)
    parser.add_argument("models", nargs="*", default=[f"corpus/tiny/{m}.json" for m in _MODELS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        if given.one:
            key, _, value = given.one.partition("=")
            with_value(key, json.loads(value))
        print(json.dumps(_rows(given.models)))
        return 0
    found: dict[str, Any] = {"base": None, "fields": {}}
    if given.json and given.json.exists():
        found = json.loads(given.json.read_text("utf-8"))
    if given.markdown:
        print(table(found))
        return 0
    found["base"] = found["base"] or _run("", None, given.models)
    for each in _wanted(given.all):
        if each.key in found["fields"]:
            continue
        half, twice = (_summary(_run(each.key, variant(each.value, f), given.models), found["base"]) for f in _FACTORS)
        found["fields"][each.key] = {"value": each.value, "half": half, "twice": twice}
        print(each.key, each.value, half, twice, flush=True)
        if given.json:
            replace_file(given.json, (json.dumps(found, indent=1) + "\n").encode(), force=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
