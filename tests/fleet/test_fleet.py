"""A fleet's promises on this machine: the same results, deaths survived and bounded, nothing done twice."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleet_tasks as work
import pytest

from superopt.discovery import result_cache as discovery_store
from superopt.discovery.config import load_config
from superopt.discovery.discover import discover
from superopt.fleet import TaskJournal, TaskLost, WorkerPool, WorkerTask, digest
from superopt.fleet.child import ChildProcessPool, packed, unpacked
from superopt.fleet.environment_digest import libraries
from superopt.fleet.worker_pool import memory
from superopt.ir.errors import BackendUnavailable, UsageError
from superopt.ir.temporary_folders import own_folder
from superopt.rules import load_library
from superopt.verifier import batch_proving


@pytest.fixture(scope="module", params=[1, 2, 3])
def fleet(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    with WorkerPool.open(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def two() -> Iterator[WorkerPool]:
    with WorkerPool.open(2) as made:
        yield made


def test_results_in_order_and_as_they_come(fleet: WorkerPool) -> None:
    tasks = [WorkerTask(work.square, (n,), name=str(n)) for n in range(40)]
    assert [o.result() for o in fleet.map(tasks)] == [n * n for n in range(40)]
    assert sorted(o.result() for o in fleet.each(tasks)) == [n * n for n in range(40)]
    assert list(fleet.map([])) == []


def test_what_a_task_raises_is_its_own(fleet: WorkerPool) -> None:
    first, second = fleet.map([WorkerTask(work.wrong, (3,)), WorkerTask(work.square, (3,))])
    with pytest.raises(ValueError, match="no 3"):
        first.result()
    assert second.result() == 9


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_whose_process_dies_is_tried_again(two: WorkerPool, tmp_path: Path, times: int) -> None:
    others = [WorkerTask(work.square, (n,)) for n in range(6)]
    found = list(two.map([WorkerTask(work.dies, (str(tmp_path), times)), *others]))
    assert found[0].result() == times
    assert [o.result() for o in found[1:]] == [n * n for n in range(6)]


def test_a_task_that_always_kills_its_process_is_reported(two: WorkerPool, tmp_path: Path) -> None:
    found = list(two.map([WorkerTask(work.dies, (str(tmp_path), 99)), WorkerTask(work.square, (4,))]))
    with pytest.raises(TaskLost, match=r"ended with -9, 3 times"):
        found[0].result()
    assert len(list(tmp_path.iterdir())) == 3
    assert found[1].result() == 16


def test_a_task_that_takes_too_long_is_ended_once(two: WorkerPool) -> None:
    started = time.monotonic()
    (found,) = two.map([WorkerTask(work.sleeps, (600.0,), seconds=0.3)])
    with pytest.raises(TaskLost, match="longer than"):
        found.result()
    assert time.monotonic() - started < 300


def test_a_result_that_cannot_be_sent_is_an_error_of_the_task(two: WorkerPool) -> None:
    (found,) = two.map([WorkerTask(work.lambda_of, (1,))])
    with pytest.raises(RuntimeError, match="cannot be sent"):
        found.result()


def test_a_process_serves_task_after_task_unless_told_otherwise() -> None:
    with WorkerPool.open(2) as fleet:
        kept = {o.result() for o in fleet.map([WorkerTask(work.process, (n,)) for n in range(8)])}
        fresh = {o.result() for o in fleet.map([WorkerTask(work.process, (n,), last=True) for n in range(4)])}
    assert len(kept) <= 2
    assert len(fresh - kept) >= 2
    assert os.getpid() not in kept | fresh


def test_a_thread_that_ends_leaves_its_process_to_the_next() -> None:
    """A check starts a thread for each pair of disturbed runs: a hundred processes were alive at its end."""
    crew = ChildProcessPool()
    call = packed(os.getpid, (), files=None, seconds=60.0, last=False)
    found: list[int] = []
    try:
        for _ in range(3):
            thread = threading.Thread(target=lambda: found.append(unpacked(crew.run(call))[0]))
            thread.start()
            thread.join()
    finally:
        crew.close()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert found[0] != os.getpid()


def test_tasks_are_asked_for_when_there_is_a_worker(fleet: WorkerPool) -> None:
    asked = 0

    def tasks() -> Iterator[WorkerTask[int]]:
        nonlocal asked
        for n in range(1000):
            asked += 1
            yield WorkerTask(work.square, (n,))

    found = fleet.map(tasks())
    for n in range(5):
        assert next(found).result() == n * n
        assert asked <= 5 + 10 * fleet.size


def test_memory_bounds_what_runs_at_once(two: WorkerPool) -> None:
    seen: list[int] = []
    tasks = [WorkerTask(work.sleeps, (0.05,), name=str(n), bytes=1 << 60) for n in range(3)]
    assert [o.result() for o in two.each(tasks, progress=lambda names: seen.append(len(names)))] == [1, 1, 1]
    assert max(seen) == 1


def test_nothing_is_begun_after_the_deadline(fleet: WorkerPool) -> None:
    assert list(fleet.each([WorkerTask(work.square, (2,))], until=time.monotonic() - 1)) == []


def keyed(folder: Path, count: int, function: Callable[..., Any] = work.noted, *more: object) -> list[WorkerTask[Any]]:
    return [WorkerTask(function, (n, *more, str(folder)), key=digest("row", n)) for n in range(count)]


def test_what_is_kept_is_not_done_again(fleet: WorkerPool, tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    for count, runs in ((5, 5), (9, 9), (9, 9)):
        with TaskJournal(tmp_path / "journal") as journal:
            found = [o.result() for o in fleet.map(keyed(done, count), kept=journal)]
        assert found == [work.row(n) for n in range(count)]
        assert len(list(done.iterdir())) == runs


def test_a_killed_client_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    script = (
        "import sys; sys.path.insert(0, sys.argv[3]); import test_fleet as t; from pathlib import Path\n"
        "from superopt.fleet import WorkerPool, TaskJournal; import fleet_tasks as w\n"
        "with WorkerPool.open(3) as f, TaskJournal(Path(sys.argv[1])) as j:\n"
        "    list(f.map(t.keyed(Path(sys.argv[2]), 30, w.slow, 0.2), kept=j))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "journal"), str(done), str(Path(__file__).parent)]
    client = subprocess.Popen(command)
    while len(list(done.iterdir())) < 4:
        assert client.poll() is None
        time.sleep(0.02)
    client.send_signal(signal.SIGKILL)
    client.wait()
    before = len(list(done.iterdir()))
    assert before < 30
    with WorkerPool.open(2) as fleet, TaskJournal(tmp_path / "journal") as journal:
        kept = [o.kept for o in fleet.map(keyed(done, 30, work.slow, 0.0), kept=journal)]
    assert sum(kept) >= 3  # all that was finished but for what was being written
    assert not all(kept)
    assert {int(p.name.split("-")[0]) for p in done.iterdir()} == set(range(30))
    assert len(list(done.iterdir())) <= 30 + 3 + 1  # at most what was under way is done twice


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with TaskJournal(path) as journal:
        for n in range(3):
            journal.put(str(n), work.row(n))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with TaskJournal(path) as journal:
            lines = whole[:cut].count(b"\n")
            assert [journal.get(str(n)) for n in range(3)] == [work.row(n) if n + 1 < lines else None for n in range(3)]
            journal.put("9", work.row(9))
        with TaskJournal(path) as journal:
            assert journal.get("9") == work.row(9)


@pytest.mark.parametrize(
    "content", [b"not a journal\n", b"{}\n", b'[1]\n{"key": 1}\n', b"\0\0", json.dumps({"a": 1}).encode()]
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a journal"):
        TaskJournal(path)
    assert path.read_bytes() == content


def test_lines_that_are_no_rows_are_as_good_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with TaskJournal(path) as journal:
        journal.put("0", work.row(0))
    first = path.read_bytes()
    lines = [b"\0" * 90, b"{", b"[" * 100_000, b"\xff", b"1", b'{"key": "1"}', b'{"key": "2", "result": [1]}', b""]
    path.write_bytes(first + b"".join(line + b"\n" for line in lines))
    with TaskJournal(path) as journal:
        journal.put("3", work.row(3))
    with TaskJournal(path) as journal:
        assert [journal.get(k) for k in "0123"] == [work.row(0), None, None, work.row(3)]


def test_a_journal_of_another_version_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"format": "superopt.journal", "version": 2}\n{"new": 1}\n')
    before = path.read_bytes()
    with pytest.raises(UsageError, match="version 2, and this superopt writes 1"):
        TaskJournal(path)
    assert path.read_bytes() == before


def test_a_source_that_has_no_task_now_is_asked_again(fleet: WorkerPool) -> None:
    ended: list[int] = []

    def tasks() -> Iterator[WorkerTask[int] | None]:
        yield WorkerTask(work.square, (0,))
        for n in range(1, 4):  # each follows from the one before
            while n - 1 not in ended:
                yield None
            yield WorkerTask(work.square, (n,))
        yield None  # nothing is under way, or soon nothing is: the end
        while True:
            yield None

    for outcome in fleet.each(tasks()):
        ended.append(outcome.task.arguments[0])
    assert ended == [0, 1, 2, 3]


def test_workers_are_as_many_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.fleet.worker_pool.memory", lambda: 3 * (128 << 20))
    with WorkerPool.open(1000) as fleet:
        found = {o.result() for o in fleet.map([WorkerTask(work.process, (n,)) for n in range(40)])}
    assert 1 <= len(found) <= 3


def test_a_control_group_bounds_memory(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("800000000\n")
    assert memory(limit) == 700000000
    limit.write_text("max\n")
    assert memory(limit) == memory(tmp_path / "none") > 700000000


def test_processes_that_cannot_be_started_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with WorkerPool.open(2) as fleet:
        monkeypatch.setattr(subprocess, "Popen", full)
        own_folder()  # which holds a descriptor
        before = len(os.listdir("/proc/self/fd"))
        outcomes = list(fleet.map([WorkerTask(work.square, (n,)) for n in range(4)]))
        assert len(os.listdir("/proc/self/fd")) == before
    for outcome in outcomes:  # a task that fails so does not end the others
        with pytest.raises(BackendUnavailable, match=r"no process for a worker can be started .*Too many open files"):
            outcome.result()


def test_two_runs_do_not_discover_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused before it explores, not after hours, when it would minimise."""
    module = importlib.import_module("superopt.discovery.discover")
    monkeypatch.setattr(module, "explore", lambda *_: pytest.fail("it explored"))
    (tmp_path / "out" / ".chunks").mkdir(parents=True)
    config = load_config(None).select(profile="taso")
    with TaskJournal(tmp_path / "out" / ".chunks" / "minimising.jsonl"), pytest.raises(UsageError, match="another run"):
        discover(config, out=tmp_path / "out")


def test_other_libraries_prove_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict is Z3's, too: another version's is not gone on from."""
    rule = next(iter(load_library().values()))
    proved, explored = batch_proving._key(rule, 10.0, 0), discovery_store.code_digest.__wrapped__()
    older = lambda: {**libraries(), "z3-solver": "4.8"}  # noqa: E731
    monkeypatch.setattr(batch_proving, "libraries", older)
    monkeypatch.setattr(discovery_store, "libraries", older)
    assert batch_proving._key(rule, 10.0, 0) != proved
    assert discovery_store.code_digest.__wrapped__() != explored


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    with TaskJournal(tmp_path / "journal"), pytest.raises(UsageError, match="another run"):
        TaskJournal(tmp_path / "journal")


def _runs(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # of one that has ended it is empty
    except (FileNotFoundError, ProcessLookupError):
        return False  # and this one was waited for, by whoever started the next process


def test_closing_ends_all_before_it_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a second Ctrl-C, which falls into the waiting, leaves no process behind."""

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with WorkerPool.open(3) as fleet:
        processes = {o.result() for o in fleet.map([WorkerTask(work.slow_process, (0.3,)) for _ in range(3)])}
        assert len(processes) == 3
        with monkeypatch.context() as pressed:
            pressed.setattr(subprocess.Popen, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fleet.__exit__(None, None, None)
        until = time.monotonic() + 60
        while any(map(_runs, processes)):
            assert time.monotonic() < until
            time.sleep(0.02)
