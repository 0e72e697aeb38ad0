"""A fleet on a Dask cluster that the test starts: what holds on this machine holds there, and what is wrong is said."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fleet_tasks as work
import pytest
from clusters import DaskCluster, dask_cluster

from superopt.fleet import ClusterTimeouts, TaskJournal, TaskLost, WorkerPool, WorkerTask, digest
from superopt.ir.errors import BackendUnavailable, UsageError

pytest.importorskip("distributed", reason="an extra: pip install 'superopt[dask]'")


@pytest.fixture(scope="module", autouse=True)
def path_of_workers() -> Iterator[None]:
    """Workers find the functions of the tests as they find superopt: on their path."""
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), 2) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(cluster: DaskCluster) -> Iterator[WorkerPool]:
    with WorkerPool.open(cluster_address=cluster.address) as made:
        yield made


def test_results_in_order_and_as_they_come(fleet: WorkerPool) -> None:
    tasks = [WorkerTask(work.square, (n,)) for n in range(20)]
    assert [o.result() for o in fleet.map(tasks)] == [n * n for n in range(20)]
    assert sorted(o.result() for o in fleet.each(tasks)) == [n * n for n in range(20)]
    assert "Dask" in fleet.where


def test_what_a_task_raises_is_its_own(fleet: WorkerPool) -> None:
    first, second = fleet.map([WorkerTask(work.wrong, (3,)), WorkerTask(work.square, (3,))])
    with pytest.raises(ValueError, match="no 3"):
        first.result()
    assert second.result() == 9


def test_a_task_that_kills_its_process_is_tried_three_times_and_the_workers_live(
    fleet: WorkerPool, cluster: DaskCluster, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = list(
        fleet.map([WorkerTask(work.dies, (str(tmp_path / "a"), 99)), WorkerTask(work.dies, (str(tmp_path / "b"), 2))])
    )
    with pytest.raises(TaskLost, match="3 times"):
        found[0].result()
    assert found[1].result() == 2
    assert all(w.poll() is None for w in cluster.workers)


def test_a_task_that_takes_too_long_is_ended(fleet: WorkerPool) -> None:
    (found,) = fleet.map([WorkerTask(work.sleeps, (600.0,), seconds=0.3)])
    with pytest.raises(TaskLost, match="longer than"):
        found.result()


def test_a_file_that_a_worker_sees_otherwise_is_refused(fleet: WorkerPool, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("one")
    assert [o.result() for o in fleet.map([WorkerTask(work.square, (2,), files=(path,))])] == [4]
    path.write_text("two")  # the fleet's own digest of it is older: as if the worker saw another file
    with pytest.raises(UsageError, match=r"model\.json has other content"):
        list(fleet.map([WorkerTask(work.square, (2,), files=(path,))]))
    path.unlink()
    with pytest.raises(UsageError, match=r"model\.json is not there"):
        list(fleet.map([WorkerTask(work.square, (2,), files=(path,))]))


def test_a_worker_that_is_killed_costs_what_it_had_in_hand(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask", 2) as cluster, WorkerPool.open(cluster_address=cluster.address) as fleet:

        def kill() -> None:
            while len(list(done.iterdir())) < 4:
                time.sleep(0.05)
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.add()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        tasks = [WorkerTask(work.slow, (n, 0.2, str(done))) for n in range(24)]
        assert [o.result() for o in fleet.map(tasks)] == [work.row(n) for n in range(24)]
        killer.join()
        assert cluster.workers[0].poll() == -signal.SIGKILL


def test_a_killed_client_goes_on_with_other_workers(cluster: DaskCluster, tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    script = (
        "import sys, fleet_tasks as w; from pathlib import Path; from superopt.fleet import *\n"
        "with WorkerPool.open(cluster_address=sys.argv[3]) as f, TaskJournal(Path(sys.argv[1])) as j:\n"
        "    t = [WorkerTask(w.slow, (n, 0.2, sys.argv[2]), key=digest('row', n)) for n in range(20)]\n"
        "    list(f.map(t, kept=j))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "journal"), str(done), cluster.address]
    client = subprocess.Popen(command)
    while len(list(done.iterdir())) < 6:
        assert client.poll() is None
        time.sleep(0.05)
    client.send_signal(signal.SIGKILL)
    client.wait()
    tasks = [WorkerTask(work.slow, (n, 0.0, str(done)), key=digest("row", n)) for n in range(20)]
    with WorkerPool.open(3) as here, TaskJournal(tmp_path / "journal") as journal:
        found = list(here.map(tasks, kept=journal))
    assert [o.result() for o in found] == [work.row(n) for n in range(20)]
    assert 1 <= sum(o.kept for o in found) < 20


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("localhost:8786", UsageError, "no address of a Dask scheduler"),
        ("http://localhost:80", UsageError, "no address"),
        ("tcp://localhost", UsageError, "no address"),
        ("tcp://127.0.0.1:1", BackendUnavailable, "no Dask scheduler answers"),
        ("tcp://no-such-host.invalid:8786", BackendUnavailable, "no Dask scheduler answers"),
    ],
)
def test_an_address_where_nothing_is(address: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WorkerPool.open(cluster_address=address, timeouts=ClusterTimeouts(connect=2.0))


def test_something_else_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and says nothing
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BackendUnavailable, match="no Dask scheduler answers"):
            WorkerPool.open(cluster_address=address, timeouts=ClusterTimeouts(connect=2.0))


def test_a_cluster_without_workers(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 0) as cluster, pytest.raises(BackendUnavailable, match="has no workers"):
        WorkerPool.open(cluster_address=cluster.address, timeouts=ClusterTimeouts(connect=3.0))


def test_a_scheduler_that_dies_ends_the_run(tmp_path: Path) -> None:
    timeouts = ClusterTimeouts(poll=0.5, workers=2.0)
    with (
        dask_cluster(tmp_path, 1) as cluster,
        WorkerPool.open(cluster_address=cluster.address, timeouts=timeouts) as fleet,
    ):
        found = fleet.each([WorkerTask(work.sleeps, (0.1 if n == 0 else 600.0,)) for n in range(3)])
        assert next(found).result() == 1
        assert cluster.scheduler is not None
        cluster.scheduler.send_signal(signal.SIGKILL)
        with pytest.raises(BackendUnavailable):
            list(found)


def test_a_worker_of_another_library_is_refused(tmp_path: Path) -> None:
    """A worker whose NumPy says that it is of another version."""
    with dask_cluster(tmp_path, 0) as cluster:
        other = tmp_path / "other"
        (other / "numpy-0.0.1.dist-info").mkdir(parents=True)
        (other / "numpy-0.0.1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n"
        )
        cluster.add(PYTHONPATH=f"{other}{os.pathsep}{os.environ['PYTHONPATH']}")
        with (
            WorkerPool.open(cluster_address=cluster.address) as fleet,
            pytest.raises(BackendUnavailable, match=r"worker on .* not like the client: numpy 0\.0\.1 instead of"),
        ):
            list(fleet.map([WorkerTask(work.square, (1,))]))
