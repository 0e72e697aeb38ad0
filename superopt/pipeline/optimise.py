"""Optimising a model: load → search → race → check → report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt import cost as costs
from superopt import formats, report
from superopt.cost import CostModel, GraphCost
from superopt.cost.trial import sizes_fed
from superopt.ir.collecting import rarely_collected
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError, printable
from superopt.ir.graph import TRAINING, Graph
from superopt.ir.poly import symbols
from superopt.ir.types import TensorType
from superopt.ops.infer import Barrier, Typing, infer
from superopt.pipeline.budget import TimeBudget
from superopt.pipeline.checking import UNCHANGED, check_result, skipped
from superopt.pipeline.forked import searched
from superopt.pipeline.judge import CHEAP, LOOKS, SITTINGS, Comparison, Judgement, demand_of
from superopt.pipeline.likely import for_one, likely_sizes, said
from superopt.pipeline.memory import SEARCHING, MemoryBound, memory_bound
from superopt.pipeline.options import ALGORITHMS, EFFORTS, VALUES, Effort, Options, Progress, quiet
from superopt.pipeline.own import own_rules, search_own_first
from superopt.pipeline.racing import LARGE, measure
from superopt.pipeline.recomputing import Point, for_memory
from superopt.pipeline.reporting import report_of
from superopt.pipeline.values import Valued, with_values
from superopt.rules import Library, Rule, load_library
from superopt.rules.values import Certificate
from superopt.runtime.blas import one_blas_thread
from superopt.runtime.choice import runtime_named
from superopt.runtime.limits import give_back, refuse_unbounded, resident
from superopt.search import AppliedRule, SearchOptions, SearchResult
from superopt.verifier.differential import EXACT, CheckResult, Slack
from superopt.verifier.running import Bench

if TYPE_CHECKING:
    import onnx

    from superopt.pipeline.fewer import Formed

__all__ = [
    "Result",
    "load",
    "optimize",
    "select_rules",
]

Model = "str | Path | bytes | onnx.ModelProto | Graph"

_ROUNDS = 15  # of a race whose figures were asked for, at least
_SHOWN_RACE = 30.0  # seconds for the final race where its figures were asked for
_PROVING = 60.0  # seconds for all proofs of a result, at most
_SUSPECTS = 4  # rules that are left out in turn after a failed check; each costs a search
_FORMS_RACE = (
    6.0  # seconds for the race of results with fewer multiplications; prices have their say in what is then open
)
_FORMS = 4.0  # times what a check needs that have to be left before fewer multiplications are looked for


@dataclass(frozen=True)
class Result:
    """The graph to use (the input itself when nothing better was found), the input, and the report.

    ``by_values`` are the rewrites by the elements of weights that the graph rests on: what each makes of the one before
    it, and what it claims (:mod:`superopt.verifier.value_files`).
    ``pareto`` has the graphs that trade time for memory, where they were asked for, by rising time; each was checked.
    """

    graph: Graph
    original: Graph
    report: report.Report
    by_values: tuple[tuple[Graph, Certificate], ...] = ()
    pareto: tuple[Point, ...] = ()

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the graph as ONNX or JSON by the path's suffix; refuses to overwrite unless forced."""
        formats.save(self.graph, Path(path), force=force)


def load(model: str | Path | bytes | onnx.ModelProto | Graph) -> Graph:
    """A graph from a path, ONNX or JSON bytes, an ONNX proto, or a graph as it is.

    Raises:
        UsageError: it is none of these. InvalidModel, ResourceLimit: as :func:`superopt.formats.load` does.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, bytes):
        return formats.from_bytes(model)
    if isinstance(model, str | Path):
        return formats.load(Path(model))
    if type(model).__name__ != "ModelProto":  # not imported for this: it may be onnx's or a copy of it
        raise UsageError(f"{type(model).__name__} is no model", hint="a path, bytes, an ONNX ModelProto, or a Graph")
    return formats.from_onnx(model)


@rarely_collected()
@one_blas_thread()
def optimize(
    model: str | Path | bytes | onnx.ModelProto | Graph,
    *,
    options: Options | None = None,
    progress: Progress = quiet,
    **settings: Any,
) -> Result:
    """Find a faster graph that computes the same, check it, and report.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``Graph``.
        options: settings.
        progress: called with (done, total, what).
        **settings: single fields of ``options``: ``optimize("m.onnx", time_limit=10)``.

    Raises:
        InvalidModel: the model is broken. ResourceLimit: no machine could run it.
        Unsupported: ``strict`` and a node is opaque. UsageError: a bad setting.
    """
    options = replace(options or Options(), **settings)
    options.validate()
    budget = TimeBudget.of(options.time_limit)
    progress(0, None, "loading")
    graph = load(model)
    typing = infer(graph, options.sizes)
    try:
        refuse_unbounded(graph, options.sizes, typing=typing, absurd=True)
    except ResourceLimit as error:
        raise (error.within(str(model)) if isinstance(model, str | Path) else error) from None
    if options.strict:
        _refuse_opaque(graph, typing)
    library = select_rules(options)
    sizes = likely_sizes(graph, options.sizes)
    began = time.monotonic()
    with costs.for_target(
        options.target,
        progress=progress,
        sizes=sizes,
        threads=options.threads,
        time_limit=budget.measuring,
        questions=EFFORTS[options.effort].questions,
        runtime=options.runtime,
    ) as model_costs:
        budget.extend(time.monotonic() - began)
        return _Attempt(graph, typing, library, model_costs, options, progress, budget, sizes).run()


def select_rules(options: Options) -> Library:
    """The library the options ask for. Rules of the user's own are proved, or tested exactly, before they are used.

    Raises:
        RuleError: a rule does not parse, is false (the message holds the counterexample), or cannot be shown true.
    """
    disabled = tuple(name for name in options.disable if name not in (ALGORITHMS, VALUES))
    library = load_library(options.rules).select(enable=options.enable, disable=disabled)
    if options.rules is None:
        return library
    from superopt.verifier.admission import admit  # here, because it loads Z3, which most runs do not need

    return admit(library)


def _refuse_opaque(graph: Graph, typing: Typing) -> None:
    for node, known in zip(graph.nodes, typing.nodes, strict=True):
        if isinstance(known, Barrier):
            raise Unsupported(
                f"{node.op} is not understood: {known.reason}",
                where=f"node {node.name!r}",
                hint="without --strict it is carried through untouched",
            )


@dataclass(frozen=True)
class _Candidate:
    """What a search came back with: checked, costed, and judged beside the input; ``changed``: it is not the input,
    ``forms``: what of it has fewer multiplications."""

    found: SearchResult
    checked: CheckResult
    cost: GraphCost
    judged: Judgement
    measured: report.Measured | None = None
    changed: bool = False
    forms: Formed | None = None


@dataclass
class _Attempt:
    """One optimisation in progress: ``run`` goes straight through.

    ``sizes`` are what symbolic dimensions are costed and timed at, ``valued`` is the graph that the search starts from
    where the weights' elements allow another than the model, ``failures`` are checks that failed on the way,
    ``remarks`` what the report has to say about memory and sizes, ``tried_for`` the seconds that judging and checking
    the last candidate took, ``interrupted`` whether its race was, ``cheap_us`` what a price may be expected to lose and
    still not be asked for, ``beside`` what is done during the next search, and may make it start from another graph.
    """

    graph: Graph
    typing: Typing
    library: Library
    costs: CostModel
    options: Options
    progress: Progress
    budget: TimeBudget
    sizes: Mapping[str, int]
    failures: list[report.CheckFailure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    tried_for: float = 0.0
    interrupted: bool = False
    bound: MemoryBound | None = None
    valued: Valued | None = None
    cheap_us: float = 0.0
    beside: Callable[[], bool] = field(default=lambda: True)

    def __post_init__(self) -> None:
        self.budget.expect(self.graph, self.typing, self.options.sizes)
        if self.options.memory_limit is not None:
            self.bound = memory_bound(self.graph, self.typing, self.options.memory_limit, self.sizes)
            self.remarks += [self.bound.note] if self.bound.note else []
        self.remarks += _unknown_sizes(self.graph, self.options.sizes)

    @property
    def effort(self) -> Effort:
        return EFFORTS[self.options.effort]

    def run(self) -> Result:
        with Bench() as bench:
            result = self._run(bench)
        for file in {id(f): f for w in self.graph.weights if (f := getattr(w.data, "file", None)) is not None}.values():
            file.refuse_changed()  # some of the result would be of the one, some of the other
        return result

    def _run(self, bench: Bench) -> Result:
        notes: list[str] = []
        before = costs.graph_cost(self.graph, self.costs, self.typing, sizes=self.sizes)
        self.cheap_us = CHEAP * before.us / costs.QUESTIONS
        self.beside = partial(self._look, notes)
        found = self._search(self.library.admitted)
        if found.stopped == "interrupted":
            self.budget.hurry()
        if self.costs.informed:  # some of what was expected is measured by now
            before = costs.graph_cost(self.graph, self.costs, self.typing, sizes=self.sizes)
        best = self._with_forms(found, before, notes, bench)
        if best is None:
            best = self._without_forms(found, before, notes, bench)
            kept = best.found.graph if best.judged.taken else self.graph
            if self.failures and kept is not found.graph:  # what failed with forms failed for something else
                best = self._with_forms(replace(best.found, graph=kept), before, notes, bench) or best
        found, after, measured = best.found, best.found.graph, best.measured
        if not best.judged.taken:
            notes.append(f"{best.judged.reason}, so the input is returned")
            found, after, measured = replace(found, graph=self.graph, applied=()), self.graph, _of_input(measured)
        elif not best.changed and self.options.measure:
            measured = self._race(after, notes, bench=bench)
        if self.interrupted:
            found = replace(found, stopped="interrupted")
        slack = 0.0 if best.forms is None else best.forms.slack
        if self.valued is not None:
            slack = max(slack, self.valued.slack(after, self.options.floats).share)
        checked = best.checked
        choices: tuple[Point, ...] = ()
        if not self.interrupted:
            costed = replace(self.options, sizes=self.sizes)
            choices = for_memory(after, costed, self.costs, notes, self.budget.left, self._races, self.progress)
            checks = bench if self.options.check else None
            choices, taken = self._sound(after, choices, checked, checks, notes, best.forms)
            if taken is not None:
                after, checked = taken
                found = replace(found, graph=after)
        verification = self._certified(after, slack) if self.options.certify and not self.interrupted else None
        if verification is not None and verification.verdict == "refuted" and after is not self.graph:
            notes.append(f"the result is refuted ({verification.reason}), so the input is returned")
            found, after, measured = replace(found, graph=self.graph, applied=()), self.graph, _of_input(measured)
            checked, choices, verification = UNCHANGED, (), self._certified(self.graph, 0.0)
        made = report_of(
            found, checked, measured, before, best.cost if after is not self.graph else before, best.forms,
            graph=self.graph, typing=self.typing, options=self.options, library=self.library, model=self.costs,
            notes=(*self.remarks, *notes), failures=self.failures, valued=self.valued, left=self.budget.left,
        )  # fmt: skip
        stages = self.valued.stages if self.valued is not None and made.values is not None else ()
        claimed = tuple((s.after, s.certificate) for s in stages)
        told = tuple(c.reported(choices[0]) for c in choices) if self.options.objective == "pareto" else ()
        made = replace(made, verification=verification, pareto=told)
        return Result(after, self.graph, made, claimed, choices if told else ())

    def _sound(
        self,
        after: Graph,
        choices: tuple[Point, ...],
        checked: CheckResult,
        bench: Bench | None,
        notes: list[str],
        forms: Formed | None,
    ) -> tuple[tuple[Point, ...], tuple[Graph, CheckResult] | None]:
        """Those of the graphs written for memory that pass the check, and which is to be returned, unless the result
        stands.

        Args:
            after: the result.
            choices: what was written for memory, the result among it or not.
            checked: what the check said of the result; of the others, too, where nothing is checked.
            bench: where graphs are run for the check; ``None``: nothing is checked.
            notes: what failed is added.
            forms: what of the result has fewer multiplications, and its budget of errors.
        """
        own = frozenset(n.name for n in self.graph.nodes)
        kept: list[Point] = []
        taken: tuple[Graph, CheckResult] | None = None
        for point in choices:
            if not point.chosen and self.budget.left <= 0.0:
                continue
            if point.graph is after:
                kept.append(point)
                continue
            if bench is not None:
                new = frozenset(n.name for n in point.graph.nodes) - own
                checked = self._check(point.graph, bench, EXACT if forms is None else Slack(forms.slack, new))
                if checked.verdict != "passed":
                    said = f"{checked.verdict}: {checked.reason}"
                    notes.append(f"what was written for memory ({point.how}) is not kept: the check {said}")
                    continue
            kept.append(point)
            if point.chosen:
                taken = point.graph, checked
        return tuple(kept), taken

    def _without_forms(self, found: SearchResult, before: GraphCost, notes: list[str], bench: Bench) -> _Candidate:
        """A search's result or, where it is refused, what a search finds that asks for less of everything.

        Where the first was modelled to gain less than could be measured, so would the second with all rules: only what
        leaves less to run is looked for then.
        """
        best = self._tried(found, before, notes, bench)
        if not best.judged.taken and best.changed and self._worth_another(best, before):
            notes.append(f"{best.judged.reason}, so only what asks for less of everything is tried")
            bench.drop(found.graph)
            raced = best.measured
            again = self._search(self.library.admitted, frugal=True, directed=best.judged.hopeless)
            best = self._tried(again, before, notes, bench)
            best = replace(best, measured=best.measured or _of_input(raced))
        return best

    def _with_forms(self, found: SearchResult, before: GraphCost, notes: list[str], bench: Bench) -> _Candidate | None:
        """A search's result with fewer multiplications, where that is checked, accurate enough, and faster."""
        options = self.options
        wanted = not options.enable and ALGORITHMS not in options.disable and options.objective != "memory"
        if found.stopped == "interrupted" or not wanted:  # forms hold larger weights, and more values at once
            return None
        from superopt.pipeline.fewer import Setting, with_forms  # here, because most models have no place for it

        setting = Setting(
            options.floats, self.sizes, options.seed, options.threads, runtime_named(options.runtime),
            races=options.target == "cpu" or options.measure,
            trials=self.effort.trials,
            seconds=_SHOWN_RACE if options.measure else min(_FORMS_RACE, self.budget.left / _FORMS),
            left=lambda: self.budget.left,
            needs=_FORMS * self.budget.reserve,
            memory=None if self.bound is None else self.bound.most,
        )  # fmt: skip
        checks = self._check if options.check else None
        try:
            forms = with_forms(
                self.graph, found.graph, self.costs, setting, bench, checks,
                lambda made, cost: self._judged(made, before, cost, notes, bench, believed=True), notes, self.progress,
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True
            self.budget.hurry()
            return None
        if forms is None:
            return None
        found = replace(found, graph=forms.graph)
        checked = forms.checked or skipped("switched off")
        judged = Judgement(True)
        return _Candidate(found, checked, forms.cost, judged, forms.measured, changed=True, forms=forms)

    def _worth_another(self, best: _Candidate, before: GraphCost) -> bool:
        """Whether there is time for another candidate, and enough to gain: what the best is modelled at, or nodes."""
        most = 1.0 - (best.cost.us / before.us if before.us else 1.0)
        enough = most > SearchOptions().least_gain or len(best.found.graph.nodes) < len(self.graph.nodes)
        return self.effort.again and not self.interrupted and self.budget.left > 2 * self.tried_for and enough

    def _tried(self, found: SearchResult, before: GraphCost, notes: list[str], bench: Bench) -> _Candidate:
        """A search's result, judged beside the input and, if it is to be returned, checked."""
        start, checked = time.monotonic(), UNCHANGED
        while found.graph is not self.graph:
            cost = costs.graph_cost(found.graph, self.costs, sizes=self.sizes)
            judged, measured = self._judged(found.graph, before, cost, notes, bench)
            candidate = _Candidate(found, checked, cost, judged, measured, changed=True)
            if not judged.taken or checked.verdict == "passed":
                break
            settled, checked = self._settle(found, notes, bench)
            candidate = replace(candidate, checked=checked)
            if settled.graph is found.graph:
                break
            found = settled  # what is left without the rule at fault: checked, and to be judged
        else:
            candidate = _Candidate(found, checked, before, Judgement(True))
        self.tried_for = time.monotonic() - start
        return candidate

    def _judged(
        self, after: Graph, before_cost: GraphCost, after_cost: GraphCost, notes: list[str], bench: Bench, *,
        believed: bool = False,
    ) -> tuple[Judgement, report.Measured | None]:  # fmt: skip
        """Whether a result is returned: by what it does, what it is modelled at or believed to take, and a race that
        goes on while it could still change that."""
        compared = Comparison(
            demand_of(before_cost), demand_of(after_cost),
            after_cost.us / before_cost.us if before_cost.us else 1.0,
            simpler=len(after.nodes) < len(self.graph.nodes), believed=believed,
        )  # fmt: skip
        if compared.hopeless and self._races and not self.options.measure:
            return Judgement(
                False, f"the rewritten graph does more of some work for less of other, and is modelled at "
                f"{compared.modelled:.3f} of the input's cost: two loadings of one model differ by as much",
                hopeless=True,
            ), None  # fmt: skip

        found = self._raced(compared, after, notes, bench, self.sizes)
        refused = found is None and self._races and self._race_fits and not self.interrupted
        judged = replace(compared, measured=found, refused=refused).judged()
        one = for_one(self.graph, self.sizes, self.options.sizes)
        if judged.taken and found is not None and one is not None and not compared.after.no_more_than(compared.before):
            unsaid: list[str] = []  # that it is refused there: no model has to accept one example
            single = self._raced(replace(compared, believed=True), after, unsaid, bench, one)
            alone = replace(compared, believed=True, measured=single).judged()
            if not alone.taken:
                judged = Judgement(False, f"{alone.reason} for one example")
        return judged, found

    def _raced(
        self, compared: Comparison, after: Graph, notes: list[str], bench: Bench, sizes: Mapping[str, int]
    ) -> report.Measured | None:  # fmt: skip
        """The race of a comparison, for as long as it could still change it, and again where loadings decide."""

        def settled(measured: report.Measured) -> bool:
            return replace(compared, measured=measured).settled

        found = self._race(after, notes, settled, bench, sizes=sizes)
        if self.costs.racing is None and self._race_fits and replace(compared, measured=found).loaded_so:
            for graph in (self.graph, after):
                bench.drop(graph)
            again = self._race(after, notes, settled, bench, sittings=SITTINGS, sizes=sizes)
            found = found if again is None or again.sittings == 1 else again
        return found

    def _certified(self, after: Graph, slack: float) -> report.Verification:
        """What can be proved of a graph in the time that is left; what is not proved, the check has run."""
        from superopt.verifier.graphs import certify_result

        self.progress(0, None, "proving")
        seconds = min(_PROVING, max(0.0, self.budget.left))
        found = certify_result(self.graph, after, seed=self.options.seed, total=seconds, slack=slack)
        return report.Verification(
            found.words, found.same, found.proved, found.tested, found.proved_share, found.reason
        )

    def _look(self, notes: list[str]) -> bool:
        """Look at the weights' elements; False where what they allow is another graph to search from."""
        if self.options.enable or VALUES in self.options.disable:
            return True
        if not self.budget.allows_looking:
            notes.append("there was no time to look at the elements of the weights")
            return True
        self.progress(0, None, "looking at the weights' elements")
        try:
            self.valued = with_values(
                self.graph, self.costs, self.options.floats, self.sizes, runtime_named(self.options.runtime),
                notes, seed=self.options.seed,
            )  # fmt: skip
        except InvalidModel as error:  # the input was read as valid: what was made of it is not, and is not used
            notes.append(f"what the weights' elements allow could not be written, a fault of superopt's: {error}")
        give_back()
        return self.valued is None

    def _search(self, rules: tuple[Rule, ...], *, frugal: bool = False, directed: bool = False) -> SearchResult:
        freely = partial(self._search_freely, frugal=frugal, directed=directed)
        if self.bound is None:
            return freely(rules)
        return self.bound.kept(self.graph, rules, self.sizes, freely, self.remarks)

    def _search_freely(self, rules: tuple[Rule, ...], *, frugal: bool, directed: bool) -> SearchResult:
        limit = self.options.memory_limit
        limits = SearchOptions(
            memory_limit=None if limit is None else resident() + max(limit, SEARCHING),
            fold_budget_bytes=None if self.bound is None else self.bound.growth,
            seed=self.options.seed,
            sizes=self.sizes,
            floats=self.library.floats(self.options.floats),
            most_nodes=self.effort.nodes,
            finite=TRAINING in self.graph.metadata,  # of what is not finite nothing is learnt
            frugal=frugal,
            directed=directed,
            cheap_us=self.cheap_us,
            reserved=self.graph.names,
        )

        writes = self.options.objective != "time" or (self.bound is not None and bool(self.bound.note))

        def once(graph: Graph, chosen: tuple[Rule, ...]) -> SearchResult:
            left = self.budget.for_search(writes)
            beside, self.beside = self.beside, lambda: True
            found = searched(graph, chosen, self.costs, replace(limits, time_limit=left), self.progress, beside)
            if found is None:
                raise _AnotherGraph
            give_back()  # a tenth of what the process holds; what follows runs models
            return found

        own = () if self.options.rules is None else own_rules(self.library, rules)
        if self.valued is None:
            with suppress(_AnotherGraph):
                return search_own_first(self.graph, rules, own, once)
        assert self.valued is not None
        return self.valued.counted(search_own_first(self.valued.graph, rules, own, once))

    def _settle(self, found: SearchResult, notes: list[str], bench: Bench) -> tuple[SearchResult, CheckResult]:
        """Check a rewritten graph; when it fails, leave out the rule at fault and search again, else fall back."""
        if not self.options.check:
            return found, skipped("switched off")
        self.progress(0, None, "checking")
        checked = self._check(found.graph, bench)
        if checked.verdict == "passed":
            return found, checked
        if checked.verdict == "skipped":
            notes.append(f"the rewritten graph could not be checked ({checked.reason}), so the input is returned")
            return replace(found, graph=self.graph, applied=()), checked
        first_reason = checked.reason
        rules = self.library.admitted
        valued = self.valued
        while self.valued is not None:
            self.valued = self.valued.lesser
            again = self._search(rules)
            checked = self._check(again.graph, bench) if again.graph is not self.graph else UNCHANGED
            if checked.verdict == "passed" or checked is UNCHANGED:
                self.failures.append(_failure(first_reason, found, VALUES))
                notes.append(f"what the weights' elements allow failed the check ({first_reason}); it was left out")
                return again, checked
        self.valued = valued
        for applied in self._suspected(found, checked)[:_SUSPECTS]:
            if self.budget.left <= 0.0:
                break
            fewer = tuple(r for r in rules if r.id != applied.rule)
            again = self._search(fewer)
            checked = self._check(again.graph, bench) if again.graph is not self.graph else UNCHANGED
            if checked.verdict == "passed" or checked is UNCHANGED:
                self.failures.append(_failure(first_reason, found, applied.rule))
                notes.append(f"rule {applied.rule} failed the check here ({first_reason}); it was left out")
                return again, checked
        self.failures.append(_failure(first_reason, found))
        notes.append(f"the rewritten graph failed the check ({first_reason}); the input is returned")
        return replace(found, graph=self.graph, applied=()), replace(checked, verdict="failed", reason=first_reason)

    def _suspected(self, found: SearchResult, checked: CheckResult) -> list[AppliedRule]:
        """The rules that were applied; first those used where the result strays furthest on the inputs that failed."""
        places: dict[str, int] = {}
        if checked.feeds:
            from superopt.verifier.locate import suspects

            for rank, outputs in enumerate(suspects(self.graph, found.graph, checked.feeds)):
                places.update(dict.fromkeys(outputs, rank))
        last = len(places)
        return sorted(
            found.applied, key=lambda a: (min((places.get(n, last) for n in a.where), default=last), -a.count)
        )

    def _check(self, after: Graph, bench: Bench, slack: Slack = EXACT) -> CheckResult:
        if slack is EXACT and self.valued is not None:
            slack = self.valued.slack(after, self.options.floats)
        bench.drop(self.graph)  # the race is over: its session would be as large as the model
        return check_result(self.graph, after, self.typing, self.options, self.budget, bench, slack)

    def _race(
        self, after: Graph, notes: list[str], settled: Callable[[report.Measured], bool] | None = None,
        bench: Bench | None = None, *, sittings: int = 1, sizes: Mapping[str, int] | None = None,
    ) -> report.Measured | None:  # fmt: skip
        """The whole models side by side, if the target is this machine and they are not too large, or on request.

        Args:
            after: beside the input.
            notes: what hindered it is added.
            settled: whether what was measured so far is enough; by default, after the usual rounds.
            bench: where the models' weights are written, for the check that follows.
            sittings: how many times the models are loaded, each for a few rounds.
            sizes: of symbolic dimensions, if not those that they are costed at.
        """
        options, wanted = self.options, self.options.measure
        if not self._races:
            return None
        if not self._race_fits:
            notes.append("there was no time left to time the models whole: their modelled costs decide")
            return None
        self.progress(0, None, "measuring")
        fed = self.sizes if sizes is None else sizes
        try:
            limit = _SHOWN_RACE if wanted else min(self.budget.left - self.budget.racing, self.effort.race)
            rounds = _ROUNDS if settled is None else LOOKS[-1] if sittings == 1 else LOOKS[0]
            looks = [n for n in LOOKS if n >= _ROUNDS or not wanted]
            found = measure(
                self.graph, after, sizes=fed, seed=options.seed, threads=options.threads, rounds=rounds,
                burst=3 if wanted else 1, time_limit=limit, device=self.costs.racing,
                runtime=runtime_named(options.runtime), looks={} if settled is None else dict.fromkeys(looks, settled),
                sittings=sittings, enough=settled or (lambda measured: False), bench=bench,
            )  # fmt: skip
            at = said(self.graph, sizes_fed(self.graph, fed))
            return replace(found, circumstances={**found.circumstances, "sizes": at}) if at else found
        except (Unsupported, InvalidModel, ResourceLimit) as error:
            notes.append(f"the models could not be timed whole: {error}")
            return None
        except KeyboardInterrupt:  # the result is found, and has to be checked
            notes.append("timing the models whole was interrupted: their modelled costs decide")
            self.interrupted = True
            self.budget.hurry()
            return None

    @property
    def _race_fits(self) -> bool:
        return self.options.measure or self.budget.left > self.budget.racing

    @property
    def _races(self) -> bool:
        """Whether results are timed beside the input."""
        return self.options.measure or (self.options.target in ("cpu", "cuda") and self.graph.weight_bytes <= LARGE)


class _AnotherGraph(Exception):
    """The search has to start from what the weights' elements allow."""


def _unknown_sizes(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """What has to be said of sizes that are given for dimensions which no value of the model has."""
    kinds = [t for t in graph.declared.values() if isinstance(t, TensorType)]
    known = dict.fromkeys(n for t in kinds for d in t.shape or () for n in sorted(symbols(d)))
    has = f"its symbolic ones are {printable(', '.join(known), 200)}" if known else "all of its sizes are fixed"
    return [
        f"the model has no dimension {printable(n)!r} to cost at {sizes[n]}: {has}" for n in sizes if n not in known
    ]


def _of_input(measured: report.Measured | None) -> report.Measured | None:
    """A race in which the input was timed, as one of the input against itself."""
    return None if measured is None else replace(measured, after_ms=measured.before_ms, ratio=1.0)


def _failure(reason: str, found: SearchResult, left_out: str = "") -> report.CheckFailure:
    return report.CheckFailure(reason, tuple(a.rule for a in found.applied if a.rule != "fold"), left_out)
