"""What libraries of rules are worth, model by model: the table on the terminal, and ``lab/results/ablation.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from superopt.ir.errors import printable
from superopt.report.corpus.model import geometric_mean

__all__ = ["LEARNT", "Outcome", "data_of", "document", "outcomes_of", "table"]

FORMAT = "superopt.ablation"
LEARNT = "discovered + --discover"  # the library with what was learnt from the model: no library of its own
_SAME = 1e-3  # modelled costs closer than this share are one: candidates of equal cost are told apart by rounding
_DIFFERENT = 0.005  # least difference of modelled ratios that puts a model among those where rules matter


@dataclass(frozen=True)
class Outcome:
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


def data_of(outcomes: Sequence[Outcome], settings: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The table as JSON data: a row per model, a column per library; where the first library is not the best.

    Args:
        outcomes: of all models.
        settings: target, seconds a search, rules of each library, date.
        machine: circumstances of the races; empty where nothing was measured.
    """
    rows: dict[str, dict[str, Outcome]] = {}
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


def _behind(row: Sequence[Outcome]) -> bool:
    """Whether the first library has no result, or one that costs more than another library's."""
    return not row[0].before_us or _above(row) > _SAME


def _above(row: Sequence[Outcome]) -> float:
    """By which share the first library's result costs more than the cheapest of another."""
    least, own = min(o.after_us for o in row if o.before_us and o.library != LEARNT), row[0].after_us
    return own / least - 1.0 if least else float("inf") if own else 0.0


def _named(row: Sequence[Outcome]) -> str:
    """A model on which the first library is behind, and by how much."""
    return f"{row[0].model} (by {100 * _above(row):.2g} %)" if row[0].before_us else row[0].model


def outcomes_of(data: Any) -> list[Outcome]:
    """The outcomes of a table that was written.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no such table.
    """
    if not isinstance(data, Mapping) or data["format"] != FORMAT:
        raise ValueError(f"not {FORMAT}")
    known = {f.name for f in fields(Outcome)}
    return [
        Outcome(row["model"], library, **{k: v for k, v in told.items() if k in known})
        for row in data["models"] for library, told in row["outcomes"].items()
    ]  # fmt: skip


def _rows(data: Mapping[str, Any]) -> list[list[Outcome]]:
    """Outcomes by model."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes_of(data):
        rows.setdefault(outcome.model, []).append(outcome)
    return list(rows.values())


def _cell(outcome: Outcome) -> str:
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


def _means(rows: Sequence[Sequence[Outcome]], column: int) -> str:
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


def _line(row: Sequence[Outcome]) -> str:
    rules = sorted(row[0].rules.items(), key=lambda r: (-r[1], r[0]))
    text = ", ".join(f"{rule} ×{n}" for rule, n in rules[:4]) + (
        f" and {len(rules) - 4} more" if len(rules) > 4 else ""
    )
    cells = [f"**{_cell(row[0])}**", *map(_cell, row[1:])]
    return f"| {row[0].model} | {' | '.join(cells)} | {', '.join(o.stopped or '–' for o in row)} | {text} |"
