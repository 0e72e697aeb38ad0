"""What rules are worth: the same models optimised with different libraries, and with none.

``make bench-ablation`` compares the library with the sound rules of TASO's that are stated in our format, with itself
and what it learns from each model beforehand (``--discover S``), and with no rules at all (what is left is computing on
constants). All share one cost model, one search and its limits; only the rules differ. As in
:func:`superopt.optimize`, the modelled cost of the whole program has the last word: a result that is not below its
model is not taken.

With ``--json FILE`` the table is written after every model, and a model that stands there already, with the same
rules and limits, is not searched again: a run that was stopped goes on. Results are kept in ``--results DIR``, from
where ``--measure`` races each model against its different results, in one process, interleaved; what was raced is not
raced again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt import formats
from superopt.benchmark.row_cache import file_digest
from superopt.formats.safe_file_access import replace_file
from superopt.ir.errors import SuperoptError, UsageError, printable
from superopt.ir.graph import Graph
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.passes import SearchOptions, search
from superopt.pipeline.optimization import load
from superopt.pipeline.options import Progress, quiet
from superopt.pipeline.paired_benchmark import runnable
from superopt.pipeline.rule_learning import learn_from
from superopt.pipeline.search_runner import search_user_rules_first
from superopt.report.corpus import geometric_mean
from superopt.rules import Rule, RuleLibrary, load_library
from superopt.rules.canonical import rule_text
from superopt.rules.float_verdicts import FloatVerdictStore
from superopt.runtime.paired_benchmark import time_models
from superopt.verifier.admission import admit
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.prover.prover import prove

__all__ = [
    "RuleAblation",
    "LEARNT",
    "AblationOutcome",
    "admitted",
    "data_of",
    "document",
    "main",
    "outcomes_of",
    "table",
]


NONE = "no rules"
Source = str | Path | Graph


def admitted(folder: Path | None) -> tuple[Rule, ...]:
    """The rules of a folder (the built-in library without one), each proved; nothing unproved is used.

    Raises:
        RuleError: a rule of the folder does not parse, is false, or is not proved.
    """
    return proved(folder).admitted


def proved(folder: Path | None) -> RuleLibrary:
    """The library of a folder with verdicts on all of its rules; the built-in one without a folder.

    Raises:
        RuleError: as :func:`admitted` does.
    """
    return load_library() if folder is None else admit(load_library(folder, built_in=False), prover=prove)


def _name(source: Source) -> str:
    if isinstance(source, Graph):
        return source.name
    path = Path(source)
    return f"tiny/{path.stem}" if path.parent.name == "tiny" else path.stem


@dataclass(frozen=True)
class _Compared:
    """Rules of a library, those of one model's own, and the verdicts in floating point of both."""

    rules: tuple[Rule, ...]
    own: tuple[Rule, ...]
    floats: FloatVerdictStore | None


@dataclass(frozen=True)
class RuleAblation:
    """Libraries to compare, and under which limits.

    Attributes:
        libraries: rules by name; no rules at all are compared as well.
        learning: seconds of learning rules from each model, for a column more: the first library and those; 0: none.
        floats: their verdicts in floating point; ``None`` uses every direction that holds over the reals.
        target: as for :func:`superopt.optimize`; on ``cpu`` operators that no profile knows are measured.
        time_limit: seconds of each search.
        sizes: of symbolic dimensions.
        results: where results are kept for a race; ``None`` keeps none.
    """

    libraries: Mapping[str, tuple[Rule, ...]]
    target: str = "cpu"
    time_limit: float = 30.0
    sizes: Mapping[str, int] | None = None
    results: Path | None = None
    floats: FloatVerdictStore | None = None
    learning: float = 0.0

    def search(
        self,
        models: Sequence[Source],
        *,
        known: Mapping[str, AblationOutcome] | None = None,
        progress: Progress = quiet,
    ) -> Iterator[list[AblationOutcome]]:
        """Optimise every model with every library, and with no rules.

        Args:
            models: paths or graphs.
            known: outcomes by key, which are not searched for again.
            progress: called with (done, total, what).

        Yields:
            The outcomes of one model, in the order of the libraries.
        """
        for done, source in enumerate(models):
            progress(done, len(models), _name(source))
            contents = source.name.encode() if isinstance(source, Graph) else Path(source).read_bytes()
            row = []
            with costs.for_target(self.target, progress=quiet, sizes=self.sizes or {}) as model_costs:
                for library, given in self._libraries(source).items():
                    key = hashlib.sha256(contents + self._settings_key(given)).hexdigest()
                    found = (known or {}).get(key)
                    if found is None or not self._ready_to_race(found):
                        outcome = AblationOutcome(_name(source), library, key=key)
                        found = self._searched(source, outcome, given, model_costs)
                    row.append(replace(found, library=library))
            yield row

    def _libraries(self, source: Source) -> Mapping[str, _Compared]:
        """What there is to compare for a model, with what is learnt from it where that is asked for."""
        found = {name: _Compared(rules, (), self.floats) for name, rules in self.libraries.items()}
        if self.learning and not isinstance(source, Graph):
            assert self.results is not None, "what is learnt has to be kept somewhere"
            folder = self.results / "learnt" / Path(source).stem
            if not any(folder.glob("*.toml")):
                learn_from([source], out=folder, target=self.target, time_limit=self.learning, sizes=self.sizes)
            rules = next(iter(self.libraries.values()))
            own = proved(folder)
            floats = self.floats and replace(self.floats, store={**self.floats.store, **own.float_store})
            found[LEARNT] = _Compared(rules, own.admitted, floats)
        return {**found, NONE: _Compared((), (), self.floats)}

    def _settings_key(self, given: _Compared) -> bytes:
        """What an outcome follows from beside the model and the code."""
        sizes = sorted((self.sizes or {}).items())
        rules = (*given.rules, *given.own)
        floats = "" if given.floats is None or not rules else given.floats.digest
        return json.dumps([self.target, self.time_limit, sizes, sorted(map(rule_text, rules)), floats]).encode()

    def _ready_to_race(self, outcome: AblationOutcome) -> bool:
        """Whether all that a race needs is there: the file of a result that has not been raced."""
        return (
            self.results is None or outcome.ratio is not None or outcome.after_us == outcome.before_us
            or self._file(outcome).is_file()
        )  # fmt: skip

    def _file(self, outcome: AblationOutcome) -> Path:
        assert self.results is not None
        return self.results / f"{outcome.key[:24]}.onnx"

    def _searched(
        self, source: Source, outcome: AblationOutcome, given: _Compared, model: costs.CostModel
    ) -> AblationOutcome:
        """One model with one library."""
        sizes = self.sizes or {}
        try:
            graph = load(source)
            limits = SearchOptions(time_limit=self.time_limit, sizes=sizes, cache=False, floats=given.floats)
            search_result = search_user_rules_first(
                graph, (*given.rules, *given.own), given.own, lambda g, chosen: search(g, chosen, model, limits)
            )
            if not search_result.before_us:
                return replace(outcome, failure=f"not searched: {search_result.stopped}")
            before = after = costs.graph_cost(graph, model, sizes=sizes).us
            if search_result.graph is not graph:
                after = costs.graph_cost(search_result.graph, model, sizes=sizes).us
            better = after < before
            outcome = replace(
                outcome, before_us=before, after_us=min(after, before), stopped=search_result.stopped,
                seconds=search_result.seconds, rules={a.rule: a.count for a in search_result.applied} if better else {},
            )  # fmt: skip
            if better and self.results is not None:
                self.results.mkdir(parents=True, exist_ok=True)
                formats.save(search_result.graph, self._file(outcome), force=True)
        except SuperoptError as error:
            return replace(outcome, failure=str(error))
        return outcome

    def measured(
        self, source: Source, row: Sequence[AblationOutcome], *, rounds: int = 15, time_limit: float = 6.0
    ) -> tuple[list[AblationOutcome], Mapping[str, Any]]:
        """The outcomes of one model with measured ratios, and the circumstances.

        Args:
            source: the model.
            row: its outcomes; results are read from ``results``, one and the same is raced once. A result that is the
                model itself is raced as a second copy: how far that is from 1 is the noise.
            rounds: of the race; where the limit comes first, fewer.
            time_limit: seconds of the race.
        """
        better = [o for o in row if not o.failure and o.after_us < o.before_us]
        digests = {o.key: file_digest(self._file(o)) for o in better}
        files = {digests[o.key]: self._file(o) for o in better}
        places = {key: [*files].index(digest) + 1 for key, digest in digests.items()}
        if not files:
            return [o if o.failure else replace(o, ratio=1.0) for o in row], {}
        try:
            graph = load(source)
            feeds = make_inputs(graph, 0, "normal", sizes=sizes_fed(graph, self.sizes or {}))
            model = runnable(graph, self._file(better[0]).with_suffix(".before.onnx"))
            models = [model, *files.values(), model]
            result = time_models(models, feeds, rounds=rounds, threads=1, clock="cpu", time_limit=time_limit)
        except SuperoptError as error:
            return [replace(o, failure=f"not timed: {error}") for o in row], {}
        made = []
        for outcome in row:
            position = places.get(outcome.key, len(models) - 1)
            made.append(outcome if outcome.failure else replace(
                outcome, ratio=result.ratios[position], spread=result.spread[position], rounds=result.rounds,
                before_ms=result.ms[0],
            ))  # fmt: skip
        return made, result.circumstances


def _recorded(path: Path | None) -> tuple[dict[str, AblationOutcome], Mapping[str, Any]]:
    """Outcomes of an earlier run by key, and its races' circumstances; none where there is no such file."""
    if path is None or not path.is_file():
        return {}, {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {o.key: o for o in outcomes_of(data) if o.key and o.before_us}, data["machine"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no table of an ablation: {error!r}", hint="remove it, or name another") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.ablation", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument(
        "--library", action="append", default=[], metavar="NAME=DIR",
        help="beside the built-in library, which comes first; NAME= (no folder) is the built-in one under another name",
    )  # fmt: skip
    parser.add_argument(
        "--discover",
        type=float,
        default=0.0,
        metavar="S",
        help="learn from each model for so long, and compare that, too",
    )
    parser.add_argument("--target", default="profile:cpu-epyc-2core", help="or cpu")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each search")
    parser.add_argument("--results", type=Path, default=Path("build/ablation"), metavar="DIR", help="of the searches")
    parser.add_argument("--measure", action="store_true", help="afterwards, race each model and its different results")
    parser.add_argument("--race-limit", type=float, default=6.0, metavar="S", help="of each race")
    parser.add_argument("--total-limit", type=float, metavar="S", help="stop between models after so many seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every model; what it holds is reused")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the table as a document")
    return parser


@dataclass
class _Run:
    """One call of the program: what is known by now, written after every model."""

    arguments: argparse.Namespace
    ablation: RuleAblation
    recorded: dict[str, AblationOutcome]
    machine: Mapping[str, Any]

    def run(self) -> tuple[dict[str, Any], bool]:
        """The table, and whether all models are in it (and raced, if that was asked for)."""
        start = time.monotonic()
        rows: dict[str, list[AblationOutcome]] = {}
        sources = {_name(s): s for s in self.arguments.models}
        for row in self.ablation.search(self.arguments.models, known=self.recorded, progress=_show):
            rows[row[0].model] = row
            self._write(rows)
            if self._late(start) and len(rows) < len(sources):
                return self._write(rows), False
        for done, (name, row) in enumerate(rows.items() if self.arguments.measure else ()):
            if all(o.ratio is not None or o.failure for o in row):
                continue
            if self._late(start):
                return self._write(rows), False
            _show(done, len(rows), f"racing {name}")
            rows[name], machine = self.ablation.measured(sources[name], row, time_limit=self.arguments.race_limit)
            self.machine = machine or self.machine
            self._write(rows)
        return self._write(rows), True

    def _late(self, start: float) -> bool:
        return self.arguments.total_limit is not None and time.monotonic() - start > self.arguments.total_limit

    def _write(self, rows: Mapping[str, Sequence[AblationOutcome]]) -> dict[str, Any]:
        settings = {
            "target": self.ablation.target, "time_limit": self.ablation.time_limit,
            "rules": {**{n: len(r) for n, r in self.ablation.libraries.items()}, NONE: 0},
            "learning": self.ablation.learning,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }  # fmt: skip
        names = {_name(s) for s in self.arguments.models}
        waiting = [o for o in self.recorded.values() if o.model in names and o.model not in rows]
        data = data_of([*(o for row in rows.values() for o in row), *waiting], settings, self.machine)
        for path, text in (
            (self.arguments.json, json.dumps(data, indent=1) + "\n"),
            (self.arguments.markdown, document(data)),
        ):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, text.encode(), force=True)
        return data


def _show(done: int, total: int | None, what: str) -> None:
    print(f"{done}/{total} {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m lab.ablation MODEL... [--library NAME=DIR]``.

    Returns:
        6 where the first library is behind another, 7 where the time limit came first (call it again), else 0.

    Raises:
        UsageError: a library is not written ``NAME=DIR``, or the table to go on with is none.
    """
    given = _parser().parse_args(arguments)
    known, machine = _recorded(given.json)
    compared = {"discovered": proved(None)}
    for text in given.library:
        name, found, folder = text.partition("=")
        if not found:
            raise UsageError(f"--library {text} is not NAME=DIR")
        compared[name] = proved(Path(folder) if folder else None)
    floats = FloatVerdictStore({key: row for library in compared.values() for key, row in library.float_store.items()})
    libraries = {name: library.admitted for name, library in compared.items()}
    ablation = RuleAblation(
        libraries, given.target, given.time_limit, results=given.results, floats=floats, learning=given.discover
    )
    data, whole = _Run(given, ablation, known, machine).run()
    print(table(data))
    for model in data["behind"]:
        print(f"behind another library: {model}", file=sys.stderr)
    if not whole:
        print("the time limit came first: the same command goes on", file=sys.stderr)
        return 7
    return 6 if data["behind"] else 0


if __name__ == "__main__":
    sys.exit(main())


# -- The report ----------------------------------------------------------------------------------------------------
#
# What libraries of rules are worth, model by model: the table on the terminal, and ``lab/results/ablation.md``.


FORMAT = "superopt.ablation"
LEARNT = "discovered + --discover"  # the library with what was learnt from the model: no library of its own
_SAME = 1e-3  # modelled costs closer than this share are one: candidates of equal cost are told apart by rounding
_DIFFERENT = 0.005  # least difference of modelled ratios that puts a model among those where rules matter


@dataclass(frozen=True)
class AblationOutcome:
    """One model with one library.

    Attributes:
        before_us, after_us: modelled cost of the whole model and of the result; equal where the model is returned.
        rules: rule → how often it was applied.
        stopped: why the search ended; ``seconds`` it took.
        ratio: measured time after ÷ before, if it was measured, and its ``spread`` over ``rounds``.
        before_ms: measured time of the model.
        failure: why there is no result (``before_us`` is 0), or why it was not measured.
        key: digest of the model's file, the rules and the limits.
    """

    model: str
    library: str
    before_us: float = 0.0
    after_us: float = 0.0
    rules: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
    seconds: float = 0.0
    ratio: float | None = None
    spread: float = 0.0
    rounds: int = 0
    before_ms: float = 0.0
    failure: str = ""
    key: str = ""

    @property
    def modelled(self) -> float:
        """Modelled cost after ÷ before; 1 where there is no result."""
        return self.after_us / self.before_us if self.before_us else 1.0


def data_of(
    outcomes: Sequence[AblationOutcome], settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The table as JSON data: a row per model, a column per library; where the first library is not the best.

    Args:
        outcomes: of all models.
        settings: target, seconds a search, rules of each library, date.
        machine: circumstances of the races; empty where nothing was measured.
    """
    rows: dict[str, dict[str, AblationOutcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.model):
        rows.setdefault(outcome.model, {})[outcome.library] = outcome
    return {
        "format": FORMAT, "version": 2, "settings": dict(settings), "machine": dict(machine),
        "libraries": list(dict.fromkeys(o.library for o in outcomes)),
        "behind": [m for m, row in rows.items() if _behind(tuple(row.values()))],
        "models": [
            {"model": m, "outcomes": {n: {k: v for k, v in asdict(o).items() if k not in ("model", "library")}
                                      for n, o in row.items()}}
            for m, row in rows.items()
        ],
    }  # fmt: skip


def _behind(row: Sequence[AblationOutcome]) -> bool:
    """Whether the first library has no result, or one that costs more than another library's."""
    return not row[0].before_us or _above(row) > _SAME


def _above(row: Sequence[AblationOutcome]) -> float:
    """By which share the first library's result costs more than the cheapest of another."""
    least, own = min(o.after_us for o in row if o.before_us and o.library != LEARNT), row[0].after_us
    return own / least - 1.0 if least else float("inf") if own else 0.0


def _named(row: Sequence[AblationOutcome]) -> str:
    """A model on which the first library is behind, and by how much."""
    return f"{row[0].model} (by {100 * _above(row):.2g} %)" if row[0].before_us else row[0].model


def outcomes_of(data: Any) -> list[AblationOutcome]:
    """The outcomes of a table that was written.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no such table.
    """
    if not isinstance(data, Mapping) or data["format"] != FORMAT:
        raise ValueError(f"not {FORMAT}")
    known = {f.name for f in fields(AblationOutcome)}
    return [
        AblationOutcome(row["model"], library, **{k: v for k, v in told.items() if k in known})
        for row in data["models"] for library, told in row["outcomes"].items()
    ]  # fmt: skip


def _rows(data: Mapping[str, Any]) -> list[list[AblationOutcome]]:
    """Outcomes by model."""
    rows: dict[str, list[AblationOutcome]] = {}
    for outcome in outcomes_of(data):
        rows.setdefault(outcome.model, []).append(outcome)
    return list(rows.values())


def _cell(outcome: AblationOutcome) -> str:
    """The modelled ratio, and the measured one where there is one."""
    if outcome.failure and not outcome.before_us:
        return printable(outcome.failure, 40)
    measured = "" if outcome.ratio is None else f" ({outcome.ratio:.3f})"
    return f"{outcome.modelled:.3f}{measured}"


def table(data: Mapping[str, Any]) -> str:
    """For the terminal: modelled cost after ÷ before per library, the measured ratio in brackets."""
    names = data["libraries"]
    rows = _rows(data)
    width = max([len(r[0].model) for r in rows] + [5])
    lines = [f"{'model':{width}}  " + "  ".join(f"{n:>20}" for n in names)]
    lines += [f"{r[0].model:{width}}  " + "  ".join(f"{_cell(o):>20}" for o in r) for r in rows]
    lines.append(f"{'mean':{width}}  " + "  ".join(f"{_means(rows, i):>20}" for i in range(len(names))))
    return "\n".join(lines)


def _means(rows: Sequence[Sequence[AblationOutcome]], column: int) -> str:
    """Geometric means over all models: a model that was not raced because it came back as it was is 1."""
    modelled = f"{geometric_mean(r[column].modelled for r in rows):.3f}"
    raced = [r[column].ratio for r in rows]
    if any(r is None for r in raced):
        return modelled
    return f"{modelled} ({geometric_mean(r for r in raced if r is not None):.3f})"


def document(data: Mapping[str, Any]) -> str:
    """The Markdown document."""
    rows, names, settings = _rows(data), data["libraries"], data["settings"]
    behind = [_named(r) for r in rows if r[0].model in data["behind"]]
    counts = ", ".join(f"{n}: {c:,} rules" for n, c in settings["rules"].items())
    head = (
        f"| model | {' | '.join(names)} | why searches stopped | rules of the {names[0]} library applied |",
        "|---|" + "--:|" * len(names) + "---|---|",
    )
    lines = [
        "# Ablation: what the rules are worth", "",
        "Written by `python -m lab.ablation` (`make bench-ablation`); do not edit. The figures are in "
        "`lab/results/ablation.json`.", "",
        f"Each model with each library ({counts}), one search, {settings['time_limit']:g} s at most, nothing kept from "
        f"earlier runs, modelled cost of the whole model after ÷ before (`{settings['target']}`), {settings['date']}; "
        "below 1 is less. Without rules what is left is computing on constants. `taso`: the rules that TASO's method "
        "finds over the operators of those it ships, stated as widely as they are proved (docs/discovery.md).", "",
        _raced_how(data), "",
        f"The {names[0]} library is behind another on {len(behind)} of {len(rows)} models"
        + (f": {', '.join(behind)}" if behind else "")
        + f"; costs within {100 * _SAME:g} % of each other are one.", "",
        *head,
        f"| **geometric mean** | {' | '.join(_means(rows, i) for i in range(len(names)))} | | |",
    ]  # fmt: skip
    apart = [r for r in rows if max(o.modelled for o in r) - min(o.modelled for o in r) > _DIFFERENT]
    lines += [_line(r) for r in sorted(apart, key=lambda r: r[0].modelled)]
    lines += ["", f"## Where the libraries differ by at most {_DIFFERENT:g}", "", *head]
    lines += [_line(r) for r in rows if r not in apart]
    return "\n".join(lines) + "\n"


def _raced_how(data: Mapping[str, Any]) -> str:
    machine = data["machine"]
    if not machine:
        return "Not measured yet."
    return (
        f"In brackets the measured time after ÷ before: {machine['runtime']} with all its own optimisations, "
        f"{machine['device']}, {machine['cores']} cores, one thread (its CPU time), the model and its different "
        f"results in one process, interleaved, {machine['date'][:10]}. A result that is the model itself is a second "
        "copy of it, and how far that is from 1 is the noise; where no library changes a model, it is 1 without a race."
    )


def _line(row: Sequence[AblationOutcome]) -> str:
    rules = sorted(row[0].rules.items(), key=lambda r: (-r[1], r[0]))
    text = ", ".join(f"{rule} ×{n}" for rule, n in rules[:4]) + (
        f" and {len(rules) - 4} more" if len(rules) > 4 else ""
    )
    cells = [f"**{_cell(row[0])}**", *map(_cell, row[1:])]
    return f"| {row[0].model} | {' | '.join(cells)} | {', '.join(o.stopped or '–' for o in row)} | {text} |"
