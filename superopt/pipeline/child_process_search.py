"""A search in a forked copy of this process, whose memory ends with it.

Compiled rewrites and e-graphs take 60 to 130 MiB, which no allocator can hand back once other objects lie between. What
comes after a search (fast algorithms, benchmarks, the check) needs memory for models. A search is a function of graph,
rules, prices and options, so it does not matter which process it runs in. The copy costs what is written in it.

Only the owner of a process may allow this (:func:`allow_child_process`): a fork keeps one of several threads, and locks
of the others stay locked. OpenBLAS stops and starts its threads around a fork. ONNX Runtime's telemetry thread is not
started (:mod:`superopt.runtime`). The watchdog of runs (:mod:`superopt.runtime.watchdog`) is started anew. OpenVINO's
threads belong to no model, so beside it there is no copy.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import Any, NoReturn

from superopt.cost.cost_model import CostModel
from superopt.fleet.child import ends_with
from superopt.formats.mapped_file import ScratchArray, SharedScratchFile
from superopt.formats.weight_data import ScratchWeightData
from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError, internal_error
from superopt.ir.graph import Graph
from superopt.passes import SearchOptions, SearchResult, search
from superopt.regions.search_result import Progress
from superopt.rules import Rule
from superopt.runtime.watchdog import watching

__all__ = ["allow_child_process", "search_in_child"]

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.2  # seconds after which who waits looks whether a signal came: one that another thread took, or that came
# just before the wait began, does not end it
_allowed = False
_harmless: frozenset[str] = frozenset()


def allow_child_process(*harmless: str) -> None:
    """Let searches run in copies of this process. For whoever owns it.

    Args:
        harmless: modules whose threads may run beside: they hold nothing that a search waits for.
    """
    global _allowed, _harmless
    _allowed, _harmless = True, frozenset(harmless)


def search_in_child(
    graph: Graph, rules: Sequence[Rule], prices: CostModel, options: SearchOptions, progress: Progress,
    meanwhile: Callable[[], bool] = lambda: True,
) -> SearchResult | None:  # fmt: skip
    """:func:`superopt.passes.search`, in a copy of the process where that is allowed and safe.

    Meanwhile this process does something else, which may find that the search is for nothing (False): then there is
    no result. Without a copy it does that first. What was measured for prices on the way is known here afterwards.
    ``KeyboardInterrupt``, by a signal or raised by ``progress``, ends the search with the best so far; the second one
    ends it with nothing.

    Raises:
        ResourceLimit: the copy was ended from outside, as a system does that runs out of memory.
    """
    known = (threading.main_thread(), watching())
    others = [t for t in threading.enumerate() if t not in known and type(t).__module__ not in _harmless]
    alone = threading.current_thread() is threading.main_thread() and not others
    if _allowed and alone and sys.platform == "linux" and prices.backend.forks:
        with suppress(_NoCopyError):
            return _search_in_copy(graph, rules, prices, options, progress, meanwhile)
    began = time.monotonic()
    if not meanwhile():
        return None
    left = None if options.time_limit is None else max(0.0, options.time_limit - (time.monotonic() - began))
    return search(graph, rules, prices, replace(options, time_limit=left), progress=progress)


class _NoCopyError(Exception):
    """The system gives no process, or no file: a limit, or no room."""


def _search_in_copy(
    graph: Graph, rules: Sequence[Rule], prices: CostModel, options: SearchOptions, progress: Progress,
    meanwhile: Callable[[], bool],
) -> SearchResult | None:  # fmt: skip
    with ExitStack() as held:
        try:
            scratch, relay = held.enter_context(SharedScratchFile()), held.enter_context(_SignalRelay())
            near, far = map(held.enter_context, Pipe())
            parent, child = os.getpid(), _fork()
        except OSError as error:
            raise _NoCopyError from error
        if child == 0:
            near.close()
            _serve(far, parent, relay, graph, rules, prices, options, scratch)
        held.enter_context(_ended(child))
        far.close()
        relay.tell(child)
        if not meanwhile():
            if relay.seen:
                raise KeyboardInterrupt  # there is no best yet
            return None
        found: SearchResult
        found, learnt = _unpacked(_received(near, child, relay, progress), graph, scratch)
    if prices.measurements is not None:
        prices.measurements.merge(learnt)
    return found


def _fork() -> int:
    with warnings.catch_warnings():  # Python counts the libraries' threads, too
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# -- the process that asks -------------------------------------------------------------------------------------------


@contextmanager
def _ended(child: int) -> Iterator[None]:
    """Whatever happens in the body, the copy is gone afterwards."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


class _SignalRelay:
    """A context manager: the first signal that would interrupt its body interrupts the copy instead."""

    def __init__(self) -> None:
        self._usual: dict[int, Any] = {}
        self.seen = 0
        self._child = 0

    def __enter__(self) -> _SignalRelay:
        usual = {number: signal.getsignal(number) for number in _ENDS}
        self._usual = {number: handler for number, handler in usual.items() if callable(handler)}
        for number in self._usual:
            signal.signal(number, self._relayed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)

    def tell(self, child: int) -> None:
        """This is the copy; what has been seen is told."""
        self._child = child
        if self.seen:
            self.interrupt()

    def interrupt(self) -> None:
        """End the search with the best so far."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGINT)

    def _relayed(self, number: int, frame: FrameType | None) -> None:
        self.seen += 1
        if self.seen > 1:
            self._usual[number](number, frame)
            return
        with suppress(KeyboardInterrupt):
            self._usual[number](number, frame)
        self.interrupt()


def _received(near: Connection, child: int, relay: _SignalRelay, progress: Progress) -> bytes:
    """What the copy sends in the end; on the way, its progress is told."""
    interrupted = False
    while True:
        try:
            while not near.poll(_LOOK):
                pass
            kind, said = pickle.loads(near.recv_bytes())
        except (EOFError, ConnectionError):
            raise KeyboardInterrupt if relay.seen else _cause_of_death(child) from None
        if kind == "raised":
            raise said
        if kind == "found":
            return bytes(said)
        try:
            progress(*said)
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            relay.interrupt()


def _cause_of_death(child: int) -> BaseException:
    """What there is to say of a copy that ended without an answer."""
    try:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays, so that its number is nobody else's
    except ChildProcessError:  # whoever started this process has it ignore how others end
        ended = None
    if ended is None or (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGKILL):
        hint = "systems do so that run out of memory: try --memory-limit, or a machine with more"
        return ResourceLimit("the process of the search was ended from outside", hint=hint)
    if ended.si_code == os.CLD_EXITED:
        return internal_error("the process of the search ended without an answer")
    if ended.si_status in _ENDS:
        return KeyboardInterrupt()
    if ended.si_status == signal.SIGBUS:  # what is mapped is not there any more
        return InvalidModel("a file of the model's weights became shorter while it was read", hint="run it again")
    if ended.si_status == signal.SIGXCPU:
        return ResourceLimit("the search took more processor time than processes may take here", hint="see ulimit -t")
    return internal_error(f"the process of the search ended: {signal.strsignal(ended.si_status)}")


# -- the copy --------------------------------------------------------------------------------------------------------


def _serve(
    far: Connection, parent: int, relay: _SignalRelay, graph: Graph, rules: Sequence[Rule], prices: CostModel,
    options: SearchOptions, scratch: SharedScratchFile,
) -> NoReturn:  # fmt: skip
    """Search, send what was found, and end, without a way back into the code that forked."""
    try:
        if ends_with(parent):
            sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w")  # others' locks may be held by threads that are gone
            scratch.owned()
            far.send_bytes(_sendable(_respond(far, relay, graph, rules, prices, options, scratch)))
    finally:
        os._exit(0)  # no destructors, and no file flushed twice


def _once(number: int, frame: FrameType | None) -> NoReturn:
    """The first interrupt ends the search with the best so far; later ones do not end that."""
    _pass_over()
    raise KeyboardInterrupt


def _pass_over() -> None:
    """From here on nothing comes of a signal. With ``SIG_IGN``, Python would print of one that came just before, and
    that it has not handled yet, that it was "ignored due to race condition", and a trace."""
    for number in _ENDS:
        signal.signal(number, _passed_over)


def _passed_over(number: int, frame: FrameType | None) -> None:
    return


def _respond(
    far: Connection, relay: _SignalRelay, graph: Graph, rules: Sequence[Rule], prices: CostModel,
    options: SearchOptions, scratch: SharedScratchFile,
) -> tuple[str, Any]:  # fmt: skip
    def tell(done: int, total: int | None, what: str) -> None:
        if select.select((), (far,), (), 0.0)[1]:  # who listens too slowly misses some
            far.send_bytes(pickle.dumps(("progress", (done, total, what))))

    answers = prices.measurements
    if answers is not None:
        answers.start_counting()
        answers.report_to(tell)
    try:
        try:
            for number in _ENDS:
                signal.signal(number, _once)
            if relay.seen:  # by the handler that was there until now
                raise KeyboardInterrupt
            found = search(graph, rules, prices, options, progress=tell)
        except KeyboardInterrupt:  # before it held a best, or when it had ended
            found = SearchResult(graph, stopped="interrupted")
        _pass_over()
        learnt = None if answers is None else answers.new()
        return "found", _packed((found, learnt), graph, scratch)
    except SuperoptError as error:
        return "raised", error
    except BaseException as error:
        error.add_note(f"in a copy of the process:\n{traceback.format_exc()}")
        return "raised", error


def _sendable(answer: tuple[str, Any]) -> bytes:
    """An answer as bytes; by its name an error that cannot be read again (some are made of more than what they say)."""
    kind, said = answer
    if kind == "found":
        return pickle.dumps(answer)
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)
    except Exception:
        named = RuntimeError(f"{type(said).__name__}: {said}")
        for note in getattr(said, "__notes__", ()):
            named.add_note(note)
        return pickle.dumps((kind, named))
    return data


# -- what goes from one to the other ---------------------------------------------------------------------------------


def _parts(graph: Graph) -> list[object]:
    """What both processes have of a graph: results share it."""
    elements = [w.data for w in graph.weights if w.data is not None]
    return [graph, *graph.weights, *elements, *graph.nodes, *graph.inputs, *graph.outputs, *graph.values]


def _packed(found: object, graph: Graph, scratch: SharedScratchFile) -> bytes:
    room = io.BytesIO()
    _Pickler(room, {id(part): i for i, part in enumerate(_parts(graph))}, scratch).dump(found)
    return room.getvalue()


def _unpacked(data: bytes, graph: Graph, scratch: SharedScratchFile) -> Any:
    return _Unpickler(io.BytesIO(data), _parts(graph), scratch).load()


class _Pickler(pickle.Pickler):
    """Names what the other process has, and where arrays lie in the scratch file that it reads, too."""

    def __init__(self, room: io.BytesIO, known: Mapping[int, int], scratch: SharedScratchFile) -> None:
        super().__init__(room, protocol=5)
        self._known, self._scratch = known, scratch

    def persistent_id(self, obj: object) -> object:
        if isinstance(obj, ScratchArray):
            return self._scratch.place(obj)
        return self._known.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, ScratchWeightData):
            return ScratchWeightData, (obj.held,)
        if isinstance(obj, Graph):  # what is cached of it is made again
            return Graph, tuple(getattr(obj, f.name) for f in fields(obj))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, room: io.BytesIO, known: Sequence[object], scratch: SharedScratchFile) -> None:
        super().__init__(room)
        self._known, self._scratch = known, scratch

    def persistent_load(self, pid: Any) -> object:
        return self._known[pid] if isinstance(pid, int) else self._scratch.at(pid)
