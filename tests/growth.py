"""How the search grows with its input: ``python tests/growth.py [CASE...]`` (``make bench-growth``).

Each case runs in a process of its own, so that its peak memory is its own. Time is CPU time of the search alone, with
costs at hand (the shipped profile) and nothing kept from earlier runs. ``--rules DIR`` takes another library,
``--tenfold`` the built-in one grown to ten times its size by renamed, mirrored and specialised duplicates.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from duplicates import tenfold  # noqa: E402

from lab.search_comparison import costs_of, rules_of  # noqa: E402
from superopt import formats  # noqa: E402
from superopt.frontend import GraphBuilder  # noqa: E402
from superopt.ir.graph import Graph  # noqa: E402
from superopt.passes import SearchOptions, search  # noqa: E402

CASES = ("bert-2", "bert-12", "bert-48", "bert-96", "nasnet_a", "random-1000", "random-10000")


def without_repetition(nodes: int, seed: int = 0) -> Graph:
    """A graph of so many nodes in which no two places are alike: every layer has sizes of its own.

    Convolutions with and without bias, residual sums, parallel branches, then matrix products with biases, activations,
    transposes and reshapes, as they follow each other in real models.
    """
    draw = np.random.default_rng(seed)
    b = GraphBuilder(f"random_{nodes}")
    channels = int(draw.integers(8, 32))
    x = b.input("x", "float32", (1, channels, 14, 14))
    count = 0
    while count < nodes // 2:
        width, kernel = int(draw.integers(8, 200)), int(draw.choice([1, 3]))
        pads = [kernel // 2] * 4
        weight = b.weight(f"w{count}", (width, channels, kernel, kernel), scale=0.1)
        y = b.op("Conv", x, weight, pads=pads, kernel_shape=[kernel, kernel])
        y = b.op("Add", y, b.weight(f"b{count}", (1, width, 1, 1), scale=0.1))
        y = b.op(str(draw.choice(["Relu", "Sigmoid", "Tanh"])), y)
        again = b.weight(f"v{count}", (width, channels, 1, 1), scale=0.1)
        z = b.op("Conv", x, again, pads=[0] * 4, kernel_shape=[1, 1])
        x, channels, count = b.op("Add", y, z), width, count + 5
    x, width = b.op("Transpose", b.op("Reshape", x, b.constant(np.array([channels, 196]))), perm=[1, 0]), channels
    count += 2
    while count < nodes:
        wide = int(draw.integers(16, 400))
        left = b.op("MatMul", x, b.weight(f"m{count}", (width, wide), scale=0.1))
        left = b.op("Add", left, b.weight(f"c{count}", (wide,), scale=0.1))
        right = b.op("MatMul", x, b.weight(f"n{count}", (width, wide), scale=0.1))
        x = b.op("Mul", b.op("Sigmoid", left), right)
        width, count = wide, count + 5
    b.output(x, "y", shape=[196, width])
    return b.build()


def model_of(case: str) -> Graph:
    kind, _, size = case.rpartition("-")
    if kind == "bert":
        from corpus.models.encoder import bert

        return bert(case, layers=int(size))
    return without_repetition(int(size)) if kind == "random" else formats.load(ROOT / "corpus" / f"{case}.json")


def measure(case: str, target: str, rules: Path | None, grown: bool) -> str:
    model, library = model_of(case), rules_of(rules)
    library = tenfold(library) if grown else library
    start = time.process_time()
    found = search(model, library, costs_of(target), SearchOptions(cache=False, time_limit=1e4))
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (f"| {case} | {len(library)} | {len(model.nodes)} | {found.regions} | {found.distinct_regions} | "
            f"{found.e_nodes} | {found.after_us / found.before_us:.4f} | {seconds:.1f} | {peak} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--rules", type=Path)
    parser.add_argument("--tenfold", action="store_true")
    parser.add_argument("--one", action="store_true", help="this process measures its one case")
    chosen = parser.parse_args()
    if chosen.one:
        print(measure(chosen.cases[0], chosen.target, chosen.rules, chosen.tenfold))
        return
    print("| case | rules | nodes | regions | distinct | e-nodes | cost ratio | search s (CPU) | peak MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    extra = [*(["--rules", str(chosen.rules)] if chosen.rules else []), *(["--tenfold"] if chosen.tenfold else [])]
    for case in chosen.cases:
        subprocess.run([sys.executable, __file__, case, "--one", "--target", chosen.target, *extra], check=True)


if __name__ == "__main__":
    main()
