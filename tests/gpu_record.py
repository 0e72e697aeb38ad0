"""Everything that needs the GPU, in one resumable command: ``make gpu-record``.

1. the tests marked ``gpu``;
2. the profile: what optimising the corpus asks for, timed (``superopt profile --target cuda``);
3. whole models, original and optimised under that profile: predicted by the sum of parts, and measured, in one race;
4. the same models by PyTorch's ``torch.compile(mode="max-autotune")`` and by XLA, at equal precision, where installed.

The log (``lab/notes/gpu-YYYY-MM-DD.md``, with the revision) and the profile are to be committed. Each call keeps to its
time limit; call it again until it says that it is complete.

Where a GPU is lent by the minute, what needs none is done beforehand, on any machine, into ``build/gpu``: ``--ask``
writes what optimising the corpus asks for and the profile lacks, and what drawn operators ask (``--like PROFILE``: what
another device's profile holds); ``--optimise`` optimises the models under the recorded profile. What is found there is
not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from superopt.cost.measurement_record import MeasurementRecord  # noqa: E402
from superopt.ir.graph import Graph, Weight  # noqa: E402
from tests import gpu_peers  # noqa: E402

STATE = ROOT / "build" / "gpu"
WHOLE = (
    "resnet50", "mobileone_s0", "repvgg_a0", "bert_2", "gpt2_last", "linear_attention", "segformer", "lora", "nasrnn",
    "siamese", "squeezenet", "resnext50", "mobilenet_v2", "vit_b16", "unet", "densenet121", "lstm", "deep_linear",
    "inception_v3", "efficientnet_b0",
)  # fmt: skip
_SEED, _EACH = 31, 8  # operators that are drawn beside what the corpus asks for, and how many of each
_NETWORKS = 58  # the seed that draws networks which no profile was recorded for (`lab.networks`)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="h200", help="the profile's name")
    parser.add_argument("--time-limit", type=float, default=480.0, help="seconds of this call")
    parser.add_argument(
        "--last", choices=("tests", "profile", "models", "peers"), default="peers", help="last step to take"
    )
    parser.add_argument("--networks", type=int, default=0, help="networks of lab to validate, too")
    parser.add_argument("--like", type=Path, help="--ask: what this profile of another device holds, and no more")
    parser.add_argument("--ask", action="store_true", help="write what is to be timed, without a GPU")
    parser.add_argument("--optimise", action="store_true", help="optimise the models under the profile, without a GPU")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.time_limit
    STATE.mkdir(parents=True, exist_ok=True)
    profile = ROOT / "superopt" / "cost" / "profiles" / f"{options.name}.jsonl.gz"
    if options.ask or options.optimise:
        return _ask(profile, options.like) if options.ask else _optimise(profile, _named(options.networks))
    from superopt.runtime.cuda.device import probe

    found = probe()
    if not found.ok:
        print(f"nothing was recorded: {found.reason}", file=sys.stderr)
        return 7
    tests = STATE / "tests.txt"
    if not tests.exists():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/cuda"], cwd=ROOT, capture_output=True, text=True
        )
        print(done.stdout[-6000:], done.stderr[-2000:])
        if done.returncode:
            return done.returncode
        tests.write_text(done.stdout)
    if options.last == "tests":
        return 0
    complete = _profiled(profile, deadline)
    names = _named(options.networks)
    rows = _whole(profile, names, deadline) if complete and options.last != "profile" else []
    if options.last == "peers":
        _peers(rows, deadline)
    _log(options.name, found.device, profile, rows)
    finished = complete and len(rows) == len(names) and all(set(gpu_peers.PEERS) <= set(r["peers"]) for r in rows)
    print("complete" if finished else "call it again: it goes on where it stopped")
    return 0


def _named(networks: int) -> tuple[str, ...]:
    """The models that are validated: of the corpus, and so many networks that the profile was not recorded for."""
    from lab.networks import drawn

    return WHOLE + drawn(_NETWORKS, networks)


def _model(name: str) -> Graph:
    """A model of the corpus, or a network of the laboratory."""
    from lab.networks import NETWORKS
    from superopt import formats

    return formats.load(ROOT / "corpus" / f"{name}.json") if name in WHOLE else NETWORKS[name]()


def _profiled(profile: Path, deadline: float) -> bool:
    """Go on with the profile; whether it is complete."""
    from superopt.benchmark import profile_recording
    from superopt.fleet import WorkerPool

    mark = STATE / "profile.json"
    if mark.exists() and json.loads(mark.read_text())["complete"]:
        return True
    asked = STATE / "asked.jsonl.gz"
    plans: list[str | Path] = sorted(str(p) for p in ([asked] if asked.exists() else (ROOT / "corpus").glob("*.json")))
    left = max(deadline - time.monotonic(), 1.0)
    with WorkerPool.open(8) as fleet:
        found = profile_recording.profile(
            plans, profile, target="cuda", time_limit=left, fleet=fleet, extend=profile.exists()
        )
    mark.write_text(json.dumps(found.summary()))
    print(json.dumps(found.summary()))
    return bool(found.complete)


def _ask(profile: Path, like: Path | None) -> int:
    """Write what optimising the corpus asks for and the profile lacks, and what is drawn. A device without a profile is
    known by its ceilings; once there is one, other plans look best: ask, record, and ask once more.
    """
    from lab import operator_models
    from lab.fast_algorithm_limits import H200_HEADER
    from superopt.benchmark.profile_recording import asked_by
    from superopt.cost.device_profile import DeviceProfile, read_profile
    from superopt.cost.measurement_record import MeasurementRequest
    from superopt.fleet import WorkerPool, WorkerTask

    known = read_profile(profile) if profile.exists() else DeviceProfile(H200_HEADER, {})
    held = {r.key.question for r in known.records.values()}
    if like:
        lacking = [
            MeasurementRecord(r.key, 0.0, 0.0)
            for r in read_profile(like).records.values()
            if r.key.question not in held
        ]
        return _written(lacking)
    asked: dict[tuple[object, ...], MeasurementRequest] = {}
    with WorkerPool.open(2) as fleet:
        tasks = (WorkerTask(asked_by, (p, known), p.stem) for p in sorted((ROOT / "corpus").glob("*.json")))
        for outcome in fleet.each(tasks):
            asked.update((q.key.question, q) for q in outcome.result())
            print(outcome.task.name, len(asked), flush=True)
    for question in operator_models.drawn(_SEED, _EACH):
        if question.key.question not in held:
            asked.setdefault(question.key.question, question)
    return _written([MeasurementRecord(q.key, 0.0, 0.0) for q in asked.values()])


def _written(asked: Sequence[MeasurementRecord]) -> int:
    """Write what is to be timed."""
    from lab.fast_algorithm_limits import H200_HEADER
    from superopt.cost.device_profile import write_profile

    write_profile(STATE / "asked.jsonl.gz", H200_HEADER, asked)
    print(f"{len(asked)} to time: {STATE / 'asked.jsonl.gz'}")
    return 0


def _optimise(profile: Path, names: Sequence[str]) -> int:
    """Optimise the models under the profile, whose answer does not depend on the machine that asks."""
    import superopt
    from superopt import formats

    (STATE / "optimised").mkdir(exist_ok=True)
    for name in names:
        graph = _model(name)
        result = superopt.optimize(graph, target=f"profile:{profile}")
        light = [replace(w, data=None) if _only_timed(w) else w for w in result.graph.weights]
        formats.save(replace(result.graph, weights=tuple(light)), STATE / "optimised" / f"{name}.json", force=True)
        print(f"{name}: {result.report.cost.before_us:.1f} to {result.report.cost.after_us:.1f} µs", flush=True)
    return 0


def _only_timed(weight: Weight) -> bool:
    """Whether its elements do not decide how long a model takes, and are many to carry to another machine."""
    return weight.type.dtype.is_float and (weight.type.nbytes or 0) > 1 << 12


def _optimised(name: str, graph: Graph, profile: Path) -> Graph:
    """The model optimised under the profile: as :func:`_optimise` left it, else made here."""
    import superopt
    from superopt import formats

    ready = STATE / "optimised" / f"{name}.json"
    if ready.exists():
        return formats.load(ready)
    return superopt.optimize(graph, target=f"profile:{profile}", time_limit=20, check=False).graph


def _whole(profile: Path, names: Sequence[str], deadline: float) -> list[dict[str, Any]]:
    """Predicted and measured microseconds of whole models, before and after optimising under the profile."""
    from superopt.cost import ProfileCostModel, graph_cost, read_profile
    from superopt.cost.cuda_timing import CudaOperatorTimer
    from superopt.ir.errors import SuperoptError
    from superopt.runtime.synthetic_tensors import feeds_for

    kept = STATE / "whole.json"
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    device = CudaOperatorTimer()
    costs = ProfileCostModel(read_profile(profile))
    for name in names:
        if time.monotonic() > deadline - 20 or any(r["model"] == name for r in rows):
            continue
        row: dict[str, Any] = {"model": name, "peers": {}}
        try:
            graph = _model(name)
            after = _optimised(name, graph, profile)
            for side, each in (("before", graph), ("after", after)):
                row[f"{side}_predicted_us"] = graph_cost(each, costs).us
            raced = device.time_models((graph, after), feeds_for(graph, integer=0), time_limit=10.0)
            row |= {"before_measured_us": 1e3 * raced.ms[0], "after_measured_us": 1e3 * raced.ms[1]}
            row |= {"ratio": raced.ratios[1], "spread": raced.spread[1]}
        except SuperoptError as error:
            row["failure"] = str(error)
        rows.append(row)
        kept.write_text(json.dumps(rows, indent=1))
        print(json.dumps(row))
    return rows


def _peers(rows: list[dict[str, Any]], deadline: float) -> None:
    """What the peers take for the same models; one that fails, or is not installed, is said so."""
    from superopt.runtime.synthetic_tensors import feeds_for

    for peer in gpu_peers.PEERS:
        for row in rows:
            if peer in row["peers"] or time.monotonic() > deadline - 45:
                continue
            if lacking := gpu_peers.missing(peer):
                row["peers"][peer] = {"failure": f"not installed: {lacking}"}
                continue
            graph = _model(row["model"])
            try:
                row["peers"][peer] = gpu_peers.time_peer(peer, graph, feeds_for(graph, integer=0))
            except Exception as error:  # whatever another tool raises is its result, and must not end the recording
                row["peers"][peer] = {"failure": f"{type(error).__name__}: {str(error).strip()[:200]}"}
            (STATE / "whole.json").write_text(json.dumps(rows, indent=1))
            print(json.dumps({row["model"]: {peer: row["peers"][peer]}}))


def _cell(row: dict[str, Any], peer: str) -> str:
    """A peer's microseconds, or why there are none."""
    found = row["peers"].get(peer)
    if found is None:
        return "to do"
    return f"{found['us']:.1f}" if "us" in found else found["failure"].replace("|", "/").splitlines()[0]


def _log(name: str, device: str, profile: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The dated log that is committed."""
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    peers = " | ".join(gpu_peers.PEERS)
    good = [r for r in rows if "failure" not in r]
    errors = [abs(r[f"{s}_predicted_us"] / r[f"{s}_measured_us"] - 1) for r in good for s in ("before", "after")]
    lines = [
        f"# {device}, {time.strftime('%Y-%m-%d', time.gmtime())}, revision {revision or 'unknown'}", "",
        f"Profile: `{profile.relative_to(ROOT)}`. Command: `make gpu-record`.", "",
        "Measured: whole models in CUDA graphs, original and optimised interleaved. Float32 throughout, no TF32.",
        "",
        f"| model | predicted, µs | measured, µs | optimised: predicted | measured | ratio | {peers} |",
        "|---" * (6 + len(gpu_peers.PEERS)) + "|",
    ]  # fmt: skip
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['model']} | {row['failure']} |" + " |" * (4 + len(gpu_peers.PEERS)))
            continue
        cells = [row[f"{s}_{k}_us"] for s in ("before", "after") for k in ("predicted", "measured")]
        others = " | ".join(_cell(row, peer) for peer in gpu_peers.PEERS)
        figures = " | ".join(f"{c:.1f}" for c in cells)
        lines.append(f"| {row['model']} | {figures} | {row['ratio']:.3f} ± {row['spread']:.3f} | {others} |")
    if errors:
        lines += [
            "",
            f"Median error of the prediction: {100 * statistics.median(errors):.1f} % of {len(errors)} graphs.",
        ]
    (ROOT / "lab" / "notes" / f"gpu-{time.strftime('%Y-%m-%d', time.gmtime())}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
