"""Write the corpus: ``python corpus/build.py [NAME...] [--check] [--out DIR]``.

Without names, every model, its tiny variant and ``corpus/manifest.toml`` are written; the same bytes on every run.
With ``--check``, nothing is written: each committed file is loaded, compared with what this script would write,
converted to ONNX and run by ONNX Runtime at two threads, one model at a time; the exit code is 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CORPUS = Path(__file__).resolve().parent
if str(CORPUS.parent) not in sys.path:
    sys.path.insert(0, str(CORPUS.parent))

from corpus.models.registry import MODELS, Model  # noqa: E402
from superopt import formats  # noqa: E402
from superopt.formats.json_writer import format_document  # noqa: E402
from superopt.formats.weight_data import RandomWeightData  # noqa: E402
from superopt.ir.errors import UsageError  # noqa: E402
from superopt.ir.graph import Graph  # noqa: E402
from superopt.ir.size_polynomial import symbols  # noqa: E402
from superopt.ir.types import TensorType  # noqa: E402
from superopt.ops.flops_and_bytes import arithmetic  # noqa: E402
from superopt.ops.shape_inference import infer  # noqa: E402
from superopt.runtime import onnx_runtime  # noqa: E402

SYMBOLIC_SIZE = 4  # what a symbolic input size is run at


def parameters(graph: Graph) -> int:
    """Elements of the random weights; constants (shapes, scalars, masks, tables) do not count."""
    counted = [w.type.elements for w in graph.weights if isinstance(w.data, RandomWeightData)]
    return sum(c for c in counted if isinstance(c, int))


def gflops(graph: Graph) -> float:
    """Arithmetic of the nodes whose meaning is known, in 10⁹ operations; a symbolic size is :data:`SYMBOLIC_SIZE`."""
    names = {s for v in graph.inputs if isinstance(v.type, TensorType) for d in v.type.shape or () for s in symbols(d)}
    return arithmetic(infer(graph, dict.fromkeys(names, SYMBOLIC_SIZE))) / 1e9


def manifest(models: Sequence[Model]) -> str:
    """``corpus/manifest.toml``: one table a model."""
    lines = ["# Written by corpus/build.py; do not edit.\n"]
    for model in models:
        graph = model.graph()
        rows = {
            "name": model.name,
            "family": model.family,
            "paper": model.paper,
            "why": model.why,
            "parameters": parameters(graph),
            "nodes": len(graph.nodes),
            "file": f"{model.name}.json",
        }
        if model.tiny is not None:
            rows["tiny"] = f"tiny/{model.name}.json"
        # A JSON string of printable text is a TOML basic string.
        lines.append("[[model]]\n" + "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in rows.items()))
    return "\n".join(lines)


def targets(model: Model, directory: Path) -> list[tuple[Path, Graph]]:
    """The files that a model is written to, with their graphs."""
    found = [(directory / f"{model.name}.json", model.graph())]
    if model.tiny is not None:
        found.append((directory / "tiny" / f"{model.name}.json", model.tiny_graph()))
    return found


def write(models: Sequence[Model], directory: Path, *, with_manifest: bool) -> None:
    """Write the models' files, and the manifest of the whole corpus, below ``directory``."""
    (directory / "tiny").mkdir(parents=True, exist_ok=True)
    for model in models:
        for path, graph in targets(model, directory):
            # In one file: constants too long to read as numbers are packed inside, not in a file beside it.
            path.write_text(format_document(formats.to_json(graph)), encoding="utf-8")
    if with_manifest:
        (directory / "manifest.toml").write_text(manifest(MODELS), encoding="utf-8")


def feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs: standard normal, ones for a mask, small integers elsewhere (token ids, token types)."""
    generator = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for value in graph.inputs:
        assert isinstance(value.type, TensorType), value.name
        assert value.type.shape is not None, value.name
        shape = tuple(d if isinstance(d, int) else SYMBOLIC_SIZE for d in value.type.shape)
        if value.type.dtype.is_float:
            made[value.name] = generator.standard_normal(shape).astype(value.type.dtype.numpy)
        elif "mask" in value.name:
            made[value.name] = np.ones(shape, value.type.dtype.numpy)
        else:
            made[value.name] = generator.integers(0, 2, shape).astype(value.type.dtype.numpy)
    return made


def session(graph: Graph, threads: int = 2) -> onnx_runtime.InferenceSession:
    """An ONNX Runtime CPU session of a graph, through a file so that protobuf's 2 GB is no limit."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        formats.save(graph, path)
        return onnx_runtime.make_session(path, threads=threads)


def check(model: Model, directory: Path) -> str:
    """A line about the model's committed file: nodes, parameters, time of a run.

    Raises:
        UsageError: the file is not what this script writes, or an output is not finite or not of its declared shape.
    """
    path = directory / f"{model.name}.json"
    with tempfile.TemporaryDirectory() as fresh:
        write([model], Path(fresh), with_manifest=False)
        for stale in (path, directory / "tiny" / path.name):
            if stale.read_bytes() != (Path(fresh) / stale.relative_to(directory)).read_bytes():
                raise UsageError("the file is not what the script writes", where=str(stale), hint="run corpus/build.py")
    graph = formats.load(path)
    runner, inputs = session(graph), feeds(graph)
    outputs = onnx_runtime.run(runner, inputs)
    for value in graph.outputs:
        array = outputs[value.name]
        if not np.isfinite(array).all():
            raise UsageError(f"output {value.name!r} is not finite", where=str(path))
        declared = value.type.shape if isinstance(value.type, TensorType) and value.type.shape is not None else ()
        if any(isinstance(d, int) and d != n for d, n in zip(declared, array.shape, strict=True)):
            raise UsageError(f"output {value.name!r} has shape {array.shape}, not {declared}", where=str(path))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        onnx_runtime.run(runner, inputs)
        times.append(time.perf_counter() - start)
    spread = max(float(np.std(a)) for a in outputs.values())
    return (
        f"{model.name:20} {len(graph.nodes):5} nodes {parameters(graph) / 1e6:8.2f} M parameters "
        f"{gflops(graph):8.3f} GFLOPs {min(times) * 1e3:9.2f} ms  outputs' deviation {spread:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to write or check; all by default")
    parser.add_argument("--check", action="store_true", help="load, compare and run the committed files instead")
    parser.add_argument("--out", type=Path, default=CORPUS, help="directory to write to or to check")
    chosen = parser.parse_args(arguments)
    known = {m.name: m for m in MODELS}
    if unknown := [n for n in chosen.names if n not in known]:
        parser.error(f"no model {unknown[0]!r}; the corpus has {', '.join(known)}")
    models = [known[n] for n in chosen.names] or list(MODELS)
    if not chosen.check:
        write(models, chosen.out, with_manifest=True)
        return 0
    failed = 0
    for model in models:
        try:
            print(check(model, chosen.out), flush=True)
        except (UsageError, OSError) as error:
            failed += 1
            print(f"{model.name:20} FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
