"""What takes minutes, megabytes or a machine of its own to show: ``make test-slow``.

Frames of the replay for real models, a topology of a 400 MB model, a locked database, a full disk.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from service_testing import GRAPH, Live, free_port, start, stop, tiny, until

from superopt import pipeline
from superopt.formats import load, save
from superopt.pipeline.stepwise_derivation import explained
from superopt.pipeline.weightless_optimization import apply, topology
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.verifier.check.differential import check
from superopt.verifier.equivalence.graphs import PROVED, ROUNDED, verify

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parents[2] / "corpus"
_EVERY = 4  # frames: one in so many is run beside the input


@pytest.mark.parametrize("name", ["mobileone_s0", "nasnet_a"])
def test_frames_of_real_models_compute_the_same_and_gains_add_up(name: str) -> None:
    before = load(CORPUS / f"{name}.json")
    options = pipeline.Options(target="profile:cpu-epyc-2core", time_limit=60)
    way = explained(pipeline.optimize(before, options=options), options)[1]
    assert way is not None
    assert len(way.steps) > 20
    assert sum(way.gains) == pytest.approx(way.us[0] - way.us[-1], rel=0.01)
    for step in way.steps[::_EVERY]:
        assert check(before, step.graph, trials=1).verdict == "passed", step.where
    for step in (way.steps[0], way.steps[-1]):
        found = verify(before, step.graph, trials=1, power="none")
        assert found.verdict in (PROVED, ROUNDED, "tested"), found


def _large(folder: Path, width: int = 7168, blocks: int = 2) -> Path:
    """An ONNX model of some 400 MB with its weights beside it: products and scales that can be one."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    with (folder / "large.onnx.data").open("wb") as file:
        for block in range(blocks):
            for name, shape in ((f"w{block}", (width, width)), (f"s{block}", (width,))):
                data = (rng.standard_normal(shape, np.float32) / np.float32(width**0.5 if len(shape) == 2 else 1)).data
                weights.append(TensorProto(name=name, data_type=1, dims=shape, data_location=TensorProto.EXTERNAL))
                for key, value in (("location", file.name), ("offset", file.tell()), ("length", data.nbytes)):
                    text = Path(str(value)).name
                    weights[-1].external_data.add(key=key, value=text)
                file.write(data)
            read = f"y{block - 1}" if block else "x"
            nodes += [
                helper.make_node("MatMul", [read, f"w{block}"], [f"p{block}"]),
                helper.make_node("Mul", [f"p{block}", f"s{block}"], [f"m{block}"]),
                helper.make_node("Relu", [f"m{block}"], [f"y{block}"]),
            ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [128, width]) for n in ("x", f"y{blocks - 1}")]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], initializer=weights)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Live]:
    """A service whose searches may take as long as they have to on a busy machine."""
    started = start(
        ServiceSettings(tmp_path / "data", port=free_port(), poll=0.1, limits=ServiceLimits(search_seconds=300.0))
    )
    yield started
    stop(started)


def test_a_topology_of_400_mb_is_kilobytes_and_its_patch_verifies(patient: Live, tmp_path: Path) -> None:
    path = _large(tmp_path)
    assert (tmp_path / "large.onnx.data").stat().st_size > 400e6
    model = load(path)
    save(topology(model), tmp_path / "topology.json")
    sent = (tmp_path / "topology.json").read_bytes()
    assert len(sent) < 1 << 20
    answer = patient.post(sent, time_limit=300, target="profile:cpu-epyc-2core")
    until(lambda: patient.succeeded(answer), 600)
    patch = patient.http.get(f"{answer.headers['location']}/result").content
    assert len(patch) < 1 << 20
    (tmp_path / "patch.json").write_bytes(patch)
    made, ran = apply(model, load(tmp_path / "patch.json"))
    assert ran is not None
    assert ran.verdict == "passed", ran
    assert len(made.nodes) < len(model.nodes)
    save(made, tmp_path / "faster.onnx")
    found = verify(model, load(tmp_path / "faster.onnx"), trials=1)
    assert found.verdict in (PROVED, ROUNDED), found


def test_a_locked_database_delays_and_loses_nothing(tmp_path: Path) -> None:
    limits = ServiceLimits(search_seconds=1.0, per_minute=500, active=500)
    live = start(ServiceSettings(tmp_path, port=free_port(), workers=1, lease=5.0, poll=0.1, limits=limits))
    try:
        (database,) = tmp_path.rglob("*.sqlite")
        first = live.post(tiny("before"))
        with sqlite3.connect(database, isolation_level=None, timeout=30) as other:
            other.execute("BEGIN EXCLUSIVE")  # as a backup or a stuck tool holds it
            answers: list[httpx.Response] = []
            posting = threading.Thread(target=lambda: answers.append(live.post(tiny("meanwhile"))))
            posting.start()
            for _ in range(20):  # who does not need the database does not wait for it: the lock is held until then
                assert live.http.get("/livez", timeout=20).status_code == 200
                assert live.http.get("/v1/limits", timeout=20).status_code == 200
                time.sleep(0.25)
            assert not answers
            other.execute("ROLLBACK")
        posting.join(60)
        assert [a.status_code for a in answers] == [202]
        for answer in (first, *answers):
            until(lambda answer=answer: live.succeeded(answer), 120)  # type: ignore[misc]
    finally:
        stop(live)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 6 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk that is full needs the right to mount one: run as root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_and_nothing_of_it_stays(small_disk: Path) -> None:
    limits = ServiceLimits(search_seconds=1.0, per_minute=500, active=500)
    live = start(ServiceSettings(small_disk, port=free_port(), workers=1, lease=5.0, poll=0.1, limits=limits))
    try:
        good = live.post(tiny("good"))
        until(lambda: live.succeeded(good), 60)
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                pass
        refused = live.http.post("/v1/jobs", content=tiny("full") + b" " * (1 << 20), headers={"Content-Type": GRAPH})
        assert refused.status_code == 503, refused.text
        assert json.loads(refused.content)["type"] == "urn:superopt:problem:disk-full"
        assert live.http.get("/livez").status_code == 200
        assert live.http.get(good.headers["location"]).json()["state"] == "succeeded"  # reading goes on
        assert live.http.get(f"{good.headers['location']}/result").status_code == 200
        incoming = [p for p in small_disk.rglob("*") if p.is_file() and "incoming" in p.parts]
        assert not incoming
        filler.unlink()
        again = until(lambda: (r := live.post(tiny("again"))).status_code == 202 and r, 30)
        until(lambda: live.succeeded(again), 60)
    finally:
        stop(live)
