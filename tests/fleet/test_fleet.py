"""A fleet's promises on this machine: the same results, deaths survived and bounded, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleet_tasks as work
import pytest

from superopt.fleet import Fleet, Journal, Lost, Task, digest
from superopt.ir.errors import UsageError


@pytest.fixture(scope="module", params=[1, 2, 3])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with Fleet.open(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def two() -> Iterator[Fleet]:
    with Fleet.open(2) as made:
        yield made


def test_results_in_order_and_as_they_come(fleet: Fleet) -> None:
    tasks = [Task(work.square, (n,), name=str(n)) for n in range(40)]
    assert [o.result() for o in fleet.map(tasks)] == [n * n for n in range(40)]
    assert sorted(o.result() for o in fleet.each(tasks)) == [n * n for n in range(40)]
    assert list(fleet.map([])) == []


def test_what_a_task_raises_is_its_own(fleet: Fleet) -> None:
    first, second = fleet.map([Task(work.wrong, (3,)), Task(work.square, (3,))])
    with pytest.raises(ValueError, match="no 3"):
        first.result()
    assert second.result() == 9


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_whose_process_dies_is_tried_again(two: Fleet, tmp_path: Path, times: int) -> None:
    others = [Task(work.square, (n,)) for n in range(6)]
    found = list(two.map([Task(work.dies, (str(tmp_path), times)), *others]))
    assert found[0].result() == times
    assert [o.result() for o in found[1:]] == [n * n for n in range(6)]


def test_a_task_that_always_kills_its_process_is_reported(two: Fleet, tmp_path: Path) -> None:
    found = list(two.map([Task(work.dies, (str(tmp_path), 99)), Task(work.square, (4,))]))
    with pytest.raises(Lost, match=r"ended with -9, 3 times"):
        found[0].result()
    assert len(list(tmp_path.iterdir())) == 3
    assert found[1].result() == 16


def test_a_task_that_takes_too_long_is_ended_once(two: Fleet) -> None:
    started = time.monotonic()
    (found,) = two.map([Task(work.sleeps, (600.0,), seconds=0.3)])
    with pytest.raises(Lost, match="longer than"):
        found.result()
    assert time.monotonic() - started < 300


def test_a_result_that_cannot_be_sent_is_an_error_of_the_task(two: Fleet) -> None:
    (found,) = two.map([Task(work.lambda_of, (1,))])
    with pytest.raises(RuntimeError, match="cannot be sent"):
        found.result()


def test_a_process_serves_task_after_task_unless_told_otherwise() -> None:
    with Fleet.open(2) as fleet:
        kept = {o.result() for o in fleet.map([Task(work.process, (n,)) for n in range(8)])}
        fresh = {o.result() for o in fleet.map([Task(work.process, (n,), last=True) for n in range(4)])}
    assert len(kept) <= 2
    assert len(fresh - kept) >= 2
    assert os.getpid() not in kept | fresh


def test_tasks_are_asked_for_when_there_is_a_worker(fleet: Fleet) -> None:
    asked = 0

    def tasks() -> Iterator[Task[int]]:
        nonlocal asked
        for n in range(1000):
            asked += 1
            yield Task(work.square, (n,))

    found = fleet.map(tasks())
    for n in range(5):
        assert next(found).result() == n * n
        assert asked <= 5 + 10 * fleet.size


def test_memory_bounds_what_runs_at_once(two: Fleet) -> None:
    seen: list[int] = []
    tasks = [Task(work.sleeps, (0.05,), name=str(n), bytes=1 << 60) for n in range(3)]
    assert [o.result() for o in two.each(tasks, progress=lambda names: seen.append(len(names)))] == [1, 1, 1]
    assert max(seen) == 1


def test_nothing_is_begun_after_the_deadline(fleet: Fleet) -> None:
    assert list(fleet.each([Task(work.square, (2,))], until=time.monotonic() - 1)) == []


def keyed(folder: Path, count: int, function: Callable[..., Any] = work.noted, *more: object) -> list[Task[Any]]:
    return [Task(function, (n, *more, str(folder)), key=digest("row", n)) for n in range(count)]


def test_what_is_kept_is_not_done_again(fleet: Fleet, tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    for count, runs in ((5, 5), (9, 9), (9, 9)):
        with Journal(tmp_path / "journal") as journal:
            found = [o.result() for o in fleet.map(keyed(done, count), kept=journal)]
        assert found == [work.row(n) for n in range(count)]
        assert len(list(done.iterdir())) == runs


def test_a_killed_client_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    script = (
        "import sys; sys.path.insert(0, sys.argv[3]); import test_fleet as t; from pathlib import Path\n"
        "from superopt.fleet import Fleet, Journal; import fleet_tasks as w\n"
        "with Fleet.open(3) as f, Journal(Path(sys.argv[1])) as j:\n"
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
    with Fleet.open(2) as fleet, Journal(tmp_path / "journal") as journal:
        kept = [o.kept for o in fleet.map(keyed(done, 30, work.slow, 0.0), kept=journal)]
    assert sum(kept) >= 3  # all that was finished but for what was being written
    assert not all(kept)
    assert {int(p.name.split("-")[0]) for p in done.iterdir()} == set(range(30))
    assert len(list(done.iterdir())) <= 30 + 3 + 1  # at most what was under way is done twice


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for n in range(3):
            journal.put(str(n), work.row(n))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            lines = whole[:cut].count(b"\n")
            assert [journal.get(str(n)) for n in range(3)] == [work.row(n) if n + 1 < lines else None for n in range(3)]
            journal.put("9", work.row(9))
        with Journal(path) as journal:
            assert journal.get("9") == work.row(9)


@pytest.mark.parametrize(
    "content", [b"not a journal\n", b"{}\n", b'[1]\n{"key": 1}\n', b"\0\0", json.dumps({"a": 1}).encode()]
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"), pytest.raises(UsageError, match="another run"):
        Journal(tmp_path / "journal")
