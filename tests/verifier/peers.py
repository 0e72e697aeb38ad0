"""What `superopt verify` says of other tools' outputs, of the same models spelled otherwise (`respelled.py`), and of
seeded mutants of them: `python tests/verifier/peers.py`.

Every small model of the corpus and every block of `blocks.py` goes through ONNX Runtime (basic and extended) and
through the tools of the `bench` extra that are installed. Printed is a table by tool (the one in
`lab/notes/verifier.md`), and each verdict that needs a look: a refuted output, a mutant that was not refuted.
`--json FILE` keeps everything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "verifier")]

from blocks import BLOCKS  # noqa: E402
from mutations import mutants  # noqa: E402
from respelled import SPELLINGS  # noqa: E402

from superopt.benchmark import peer  # noqa: E402
from superopt.formats import load, save  # noqa: E402
from superopt.verifier.equivalence.graphs import PROVED, ROUNDED, verify  # noqa: E402

LEVELS = {
    "ort-basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "ort-extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
PEERS = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer")


def installed() -> tuple[str, ...]:
    """ONNX Runtime's levels, spellings, and the tools that can be imported."""
    return (*LEVELS, *SPELLINGS, *(p for p in PEERS if importlib.util.find_spec(p) is not None))


def write_models(folder: Path, names: Sequence[str] = ()) -> Iterator[Path]:
    """The models as ONNX files; all of them, by default."""
    for path in sorted((ROOT / "corpus" / "tiny").glob("*.json")):
        if not names or path.stem in names:
            target = folder / f"{path.stem}.onnx"
            if not target.exists():
                save(load(path), target)
            yield target
    for name, made in BLOCKS.items():
        if not names or name in names:
            onnx.save(made(), folder / f"block_{name}.onnx")
            yield folder / f"block_{name}.onnx"


def optimised(tool: str, source: Path) -> Path | None:
    """What a tool makes of a model, kept beside it; ``None`` where it fails."""
    target = source.with_suffix(f".{tool}.onnx")
    if target.exists():
        return target
    if tool in SPELLINGS:
        onnx.save(SPELLINGS[tool](onnx.load(source)), target)
        return target
    if tool in LEVELS:
        options = SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = LEVELS[tool]
        options.optimized_model_filepath = str(target)
        InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        return target
    command = [sys.executable, peer.__file__, tool, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{source.stem}: {tool} fails: {(done.stderr.strip().splitlines() or ['silently'])[-1]}", flush=True)
        return None
    return target


def judged(source: Path, target: Path, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """The verdicts on an output and on its mutants."""
    before, after = load(source), load(target)
    start = time.process_time()
    found = verify(before, after, time_limit=seconds, power="quick")
    row: dict[str, Any] = {
        "verdict": found.verdict, "words": found.words, "reason": found.reason, "same": found.same,
        "proved": found.proved, "tested": found.tested, "max_ulp": found.max_ulp,
        "cpu_seconds": round(time.process_time() - start, 2), "mutants": [],
    }  # fmt: skip
    for mutant in mutants(after, count, seed):
        said = verify(before, mutant.graph, time_limit=seconds, power="none")
        row["mutants"].append({"what": mutant.what, "verdict": said.verdict, "reason": said.reason})
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The verdicts by tool, in Markdown."""
    head = (
        "output of", "models", "proved", "up to rounding (max ulp)", "tested", "refuted", "nodes proved",
        "mutants refuted", "mutants proved",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for tool in dict.fromkeys(r["tool"] for r in rows):
        own = [r for r in rows if r["tool"] == tool]
        verdicts = [r["verdict"] for r in own]
        nodes = sum(r["same"] + r["proved"] + r["tested"] for r in own)
        shown = sum(r["same"] + r["proved"] for r in own if r["verdict"] != "refuted")
        said = [m["verdict"] for r in own for m in r["mutants"]]
        lines.append(
            f"| {tool} | {len(own)} | {verdicts.count(PROVED)} | {verdicts.count(ROUNDED)} "
            f"({max((r['max_ulp'] for r in own), default=0)}) | {verdicts.count('tested')} | "
            f"{verdicts.count('refuted')} | {shown / max(nodes, 1):.1%} | {said.count('refuted')} of {len(said)} | "
            f"{said.count(PROVED) + said.count(ROUNDED)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[], help="names; all by default")
    parser.add_argument("--tools", nargs="*", default=list(installed()))
    parser.add_argument("--mutants", type=int, default=4, help="of each output")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds for the proof of one region")
    parser.add_argument("--work", type=Path, help="where models and outputs are kept; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="where everything is written")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for source in write_models(folder, given.models):
            for tool in given.tools:
                target = optimised(tool, source)
                if target is None:
                    continue
                row = judged(source, target, given.mutants, given.seed, given.time_limit)
                rows.append({"model": source.stem, "tool": tool, **row})
                print(f"{source.stem} {tool}: {row['words']} ({row['cpu_seconds']} s)", flush=True)
                if row["verdict"] == "refuted":
                    print(f"  {row['reason']}", flush=True)
                for mutant in row["mutants"]:
                    if mutant["verdict"] != "refuted":
                        print(f"  mutant, {mutant['what']}: {mutant['verdict']}, {mutant['reason']}", flush=True)
                if given.json is not None:
                    given.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
