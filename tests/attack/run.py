"""Attack superopt with generated models and judge it by ONNX Runtime with its optimisations off.

    python tests/attack/run.py --models 2000 --seed 0 --workers 1 --out build/attack.json
    python tests/attack/run.py --only 1234 --shrink       one attack again, made small

PYTHONPATH decides which tree is attacked. Failures are written beside the report, in a folder of its name.
Exit status: 0 all right, 1 something wrong, refused, or overrun.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from attacker.campaign import Outcome, attack_one, campaign, keep, table
from attacker.generate import GROUPS, generate
from attacker.shrink import shrink


def main() -> int:
    """Parse arguments, attack, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--feeds", type=int, default=24, help="inputs a model")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds given to the product for a model")
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--only", type=int, nargs="+", help="these seeds, in this process")
    parser.add_argument("--shrink", action="store_true", help="with --only: also find a smaller model that fails")
    parser.add_argument("--out", type=Path, default=Path("build/attack.json"))
    options = parser.parse_args()
    folder = options.out.with_suffix("")
    if options.only:
        return max(_again(seed, options, folder) for seed in options.only)
    outcomes: list[Outcome] = []
    seeds = range(options.seed, options.seed + options.models)
    for outcome in campaign(
        seeds, workers=options.workers, time_limit=options.time_limit, count=options.feeds, folder=folder,
        group=options.group,
    ):  # fmt: skip
        outcomes.append(outcome)
        if outcome.outcome != "right":
            print(_line(outcome), flush=True)
        if len(outcomes) % 10 == 0 or len(outcomes) == len(seeds):
            _write(options.out, outcomes)
            print(f"{len(outcomes)} of {len(seeds)}", flush=True)
    print(table(outcomes))
    return int(any(o.outcome != "right" for o in outcomes))


def _line(o: Outcome) -> str:
    return f"{o.seed} {o.group}/{o.motif}: {o.outcome} ({o.kind}) {o.detail} rules={','.join(o.rules)} check={o.check}"


def _again(seed: int, options: argparse.Namespace, folder: Path) -> int:
    attack = generate(seed, options.group)
    outcome, feed, result = attack_one(attack, time_limit=options.time_limit, count=options.feeds)
    print(_line(outcome))
    if outcome.outcome == "right":
        return 0
    keep(folder, outcome, attack, feed, result)
    if options.shrink:
        small = shrink(attack, outcome, feed, time_limit=options.time_limit)
        path = folder / f"{seed:05d}-small.onnx"
        path.write_bytes(small.SerializeToString())
        print(f"{path}: {len(small.graph.node)} of {len(attack.model.graph.node)} nodes")
    return 1


def _write(path: Path, outcomes: list[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(o) for o in outcomes], indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
