"""A search in a copy of the process: the same result, what it learnt, how it ends, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt import cost as costs
from superopt.cost.device_profile import DeviceProfileStore
from superopt.cost.measured_cost_models import MeasurementCache
from superopt.formats.weight_data import ScratchWeightData, set_aside
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError, Unsupported
from superopt.ir.graph import Graph
from superopt.passes import SearchOptions, SearchResult
from superopt.pipeline import child_process_search
from superopt.rules import load_library


def folding(width: int = 8) -> Graph:
    """A convolution and a normalization, which folds into its weights."""
    builder = GraphBuilder("folding")
    made = builder.op("Conv", builder.input("x", "float32", [1, 3, 16, 16]), builder.weight("w", (width, 3, 3, 3)))
    about = [builder.weight(n, (width,), scale=0.1, offset=1.0) for n in ("scale", "bias", "mean", "variance")]
    builder.output(builder.op("Relu", builder.op("BatchNormalization", made, *about)), "y")
    return builder.build()


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = threading.enumerate
    others = usual()[1:]  # of whoever runs the tests
    monkeypatch.setattr(threading, "enumerate", lambda: [t for t in usual() if t not in others])
    monkeypatch.setattr(child_process_search, "_allowed", True)
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def quiet(done: int, total: int | None, what: str) -> None:
    """Progress that nobody reads."""


def searched(graph: Graph, progress: Callable[[int, int | None, str], None] = quiet) -> SearchResult:
    library = load_library()
    options = SearchOptions(floats=library.floats("standard"), cache=False)
    with costs.for_target("profile:cpu-epyc-2core") as prices:
        found = child_process_search.search_in_child(graph, library.admitted, prices, options, progress)
    assert found is not None
    return found


def stubbed(monkeypatch: pytest.MonkeyPatch, instead: Callable[..., Any]) -> None:
    monkeypatch.setattr(child_process_search, "search", instead)


def nothing_left() -> bool:
    """Whether no process that has ended waits for this one to ask how; others' may run."""
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return True


def test_it_is_a_copy_that_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    def where(graph: Graph, *args: object, **named: object) -> SearchResult:
        return SearchResult(graph, notes=(str(os.getpid()),))

    stubbed(monkeypatch, where)
    assert searched(folding()).notes != (str(os.getpid()),)
    with monkeypatch.context() as other:
        other.setattr(child_process_search, "_allowed", False)
        assert searched(folding()).notes == (str(os.getpid()),)
    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    try:
        assert searched(folding()).notes == (str(os.getpid()),), "of two threads one would survive"
        monkeypatch.setattr(child_process_search, "_harmless", frozenset({type(beside).__module__}))
        assert searched(folding()).notes != (str(os.getpid()),)
    finally:
        over.set()
        beside.join()


@pytest.mark.parametrize("missing", ["fork", "file"])
def test_where_the_system_gives_none_this_process_searches(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refuses() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    if missing == "fork":
        monkeypatch.setattr(os, "fork", refuses)
    else:
        monkeypatch.setattr(child_process_search, "SharedScratchFile", refuses)
    gc.collect()  # what other tests have left open
    files = len(os.listdir("/proc/self/fd"))
    assert [n.op for n in searched(folding()).graph.nodes] == ["Conv", "Relu"]
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_the_result_is_the_one_that_this_process_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = folding()
    copied = searched(graph)
    monkeypatch.setattr(child_process_search, "_allowed", False)
    own = searched(graph)
    assert [n.op for n in own.graph.nodes] == ["Conv", "Relu"]
    assert [str(n) for n in copied.graph.nodes] == [str(n) for n in own.graph.nodes]
    assert replace(copied, graph=graph, seconds=0.0) == replace(own, graph=graph, seconds=0.0)
    for one, other in zip(copied.graph.weights, own.graph.weights, strict=True):
        assert one.data is not None
        assert other.data is not None
        assert (one.name, one.type, one.metadata) == (other.name, other.type, other.metadata)
        assert one.data.numpy().tobytes() == other.data.numpy().tobytes()


def test_what_is_not_new_is_what_was_there() -> None:
    builder = GraphBuilder("nothing to gain")
    builder.output(builder.op("Relu", builder.input("x", "float32", [4])), "y")
    graph = builder.build()
    assert searched(graph).graph is graph
    graph = folding()
    kept = {id(w.data) for w in graph.weights}
    sources = [w.data.sources for w in searched(graph).graph.weights if hasattr(w.data, "sources")]
    assert sources
    assert all(id(data) in kept for found in sources for data in found.values())


def test_arrays_that_the_copy_made_stay_and_go_with_their_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    def makes(graph: Graph, *args: object, **named: object) -> SearchResult:
        made = set_aside(np.arange(1 << 18, dtype=np.float32))
        assert isinstance(made, ScratchWeightData)
        return SearchResult(replace(graph, weights=(replace(graph.weights[0], data=made), *graph.weights[1:])))

    stubbed(monkeypatch, makes)
    files = len(os.listdir("/proc/self/fd"))
    found = searched(folding())
    data = found.graph.weights[0].data
    assert isinstance(data, ScratchWeightData)
    assert (data.numpy() == np.arange(1 << 18)).all()
    assert len(os.listdir("/proc/self/fd")) == files + 1
    del found, data
    assert len(os.listdir("/proc/self/fd")) == files


def test_something_else_is_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def waits(graph: Graph, *args: object, **named: object) -> SearchResult:
        order.append("searched")
        time.sleep(0.2)
        return SearchResult(graph, seconds=time.monotonic())

    def does(good: bool) -> bool:
        order.append(f"done {good}")
        return good

    stubbed(monkeypatch, waits)
    graph = folding()
    with costs.for_target("profile:cpu-epyc-2core") as prices:
        for copied in (True, False):
            monkeypatch.setattr(child_process_search, "_allowed", copied)
            assert (
                child_process_search.search_in_child(graph, (), prices, SearchOptions(), quiet, lambda: does(False))
                is None
            )
            found = child_process_search.search_in_child(graph, (), prices, SearchOptions(), quiet, lambda: does(True))
            assert found is not None
            assert found.graph is graph
    done = ["done False", "done True"]
    assert order == [*done, *done, "searched"], "a copy's search is not seen here; without one it comes last"
    assert nothing_left()


def test_what_was_measured_is_known_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, record, beside = list(costs.load_profile("cpu-epyc-2core").records.values())[:3]
    answers = MeasurementCache(DeviceProfileStore("test", {}, tmp_path))
    answers.store.add(before)
    answers.measured = 1

    def asks(graph: Graph, rules: object, prices: costs.CostModel, *args: object, **named: object) -> SearchResult:
        assert prices.measurements is not None
        prices.measurements.store.add(record)
        prices.measurements.measured += 2
        return SearchResult(graph)

    def measures() -> bool:
        answers.store.add(beside)
        answers.measured += 1
        return True

    stubbed(monkeypatch, asks)
    graph = folding()
    with costs.for_target("profile:cpu-epyc-2core") as prices:
        prices.measurements = answers
        child_process_search.search_in_child(graph, (), prices, SearchOptions(), quiet, measures)
    assert answers.measured == 4, "one before, two there, one here meanwhile"
    for known in (before, record, beside):
        assert answers.store.get(known.key.text) == known
        assert DeviceProfileStore("test", {}, tmp_path).get(known.key.text) == known


def test_progress_is_told_and_may_interrupt() -> None:
    told: list[str] = []
    searched(folding(), lambda done, total, what: told.append(what))
    assert any("applying all rules" in what for what in told)

    def interrupts(done: int, total: int | None, what: str) -> None:
        raise KeyboardInterrupt

    graph = folding()
    found = searched(graph, interrupts)
    assert found.stopped == "interrupted"
    assert {v.name for v in found.graph.outputs} == {"y"}


@pytest.mark.parametrize("taken", [False, True], ids=["by the thread that waits", "by another thread"])
def test_a_signal_ends_it_with_the_best_so_far(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(graph: Graph, *args: object, **named: object) -> SearchResult:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            os.kill(os.getppid(), signal.SIGINT)
            for _ in range(200):  # a signal just before a sleep is seen after it
                time.sleep(0.1)
        except KeyboardInterrupt:
            return SearchResult(graph, stopped="interrupted")
        return SearchResult(graph)

    stubbed(monkeypatch, waits)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    over, held = threading.Event(), threading.enumerate()
    other = threading.Thread(target=over.wait)
    other.start()  # the system gives it what the thread that waits blocks: then that thread's wait goes on
    monkeypatch.setattr(threading, "enumerate", lambda: held)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK if taken else signal.SIG_UNBLOCK, [signal.SIGINT])
        assert searched(folding()).stopped == "interrupted"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        over.set()
        other.join()
        signal.signal(signal.SIGINT, usual)


def test_a_signal_at_the_same_moment_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where a terminal's Ctrl-C goes to both processes, and the first tells the second."""

    def waits(graph: Graph, *args: object, **named: object) -> SearchResult:
        both = {signal.SIGINT, signal.SIGTERM}
        sys.unraisablehook = lambda found: print(found.exc_value, file=sys.stderr, flush=True)
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
            time.sleep(20)
        except KeyboardInterrupt:
            return SearchResult(graph, stopped="interrupted")
        return SearchResult(graph)

    stubbed(monkeypatch, waits)
    assert searched(folding()).stopped == "interrupted"
    assert capfd.readouterr().err == ""


def test_what_is_raised_there_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object, **named: object) -> SearchResult:
        raise Unsupported("no such thing", where="node 'a'")

    def breaks(*args: object, **named: object) -> SearchResult:
        raise RuntimeError("a fault of ours")

    stubbed(monkeypatch, refuses)
    with pytest.raises(Unsupported, match="no such thing") as raised:
        searched(folding())
    assert raised.value.where == "node 'a'"
    stubbed(monkeypatch, breaks)
    with pytest.raises(RuntimeError, match="a fault of ours") as broken:
        searched(folding())
    assert "in breaks" in "".join(broken.value.__notes__), "the copy's own traceback is kept"


class _Made(Exception):
    """Made of more than what it says, so that it cannot be read again."""

    def __init__(self, what: str, more: Callable[[], None]) -> None:
        super().__init__(what)
        self.more = more


@pytest.mark.parametrize("more", [dict, lambda: None], ids=["not read", "not written"])
def test_an_error_that_cannot_be_sent_is_named(more: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: object, **named: object) -> SearchResult:
        raise _Made("a fault of ours", more)

    stubbed(monkeypatch, breaks)
    with pytest.raises(RuntimeError, match="_Made: a fault of ours") as broken:
        searched(folding())
    assert "in breaks" in "".join(broken.value.__notes__)


ENDS: dict[signal.Signals | None, tuple[type[BaseException], str]] = {
    signal.SIGKILL: (ResourceLimit, "ended from outside.*--memory-limit"),
    signal.SIGXCPU: (ResourceLimit, "processor time.*ulimit -t"),
    signal.SIGSEGV: (SuperoptError, "ended: Segmentation fault"),
    signal.SIGBUS: (InvalidModel, "became shorter"),
    signal.SIGTERM: (KeyboardInterrupt, "^$"),
    None: (SuperoptError, "without an answer"),
}


@pytest.mark.parametrize("by", ENDS)
@pytest.mark.parametrize("waits", [signal.SIG_DFL, signal.SIG_IGN], ids=["told", "not told"])
def test_a_copy_that_is_ended_is_an_error_and_leaves_no_process(
    by: signal.Signals | None, waits: signal.Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: object, **named: object) -> SearchResult:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if by is None:
            os._exit(1)
        if by is not signal.SIGKILL:
            signal.signal(by, signal.SIG_DFL)
        os.kill(os.getpid(), by)
        raise AssertionError

    stubbed(monkeypatch, dies)
    kind, said = ENDS[by] if waits is signal.SIG_DFL else ENDS[signal.SIGKILL]
    usual = signal.signal(signal.SIGCHLD, waits)
    try:
        with pytest.raises(kind, match=said):
            searched(folding())
        assert nothing_left()
    finally:
        signal.signal(signal.SIGCHLD, usual)


def test_a_copy_that_is_gone_after_a_signal_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever interrupts a group of processes may end the copy before it says how it ends."""

    def dies(*args: object, **named: object) -> SearchResult:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        raise AssertionError

    def killed(relay: Any) -> None:
        if relay._child:
            os.kill(relay._child, signal.SIGKILL)

    stubbed(monkeypatch, dies)
    monkeypatch.setattr("superopt.pipeline.child_process_search._SignalRelay.interrupt", killed)
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            searched(folding())
    finally:
        signal.signal(signal.SIGTERM, usual)
