"""Words: operators that no rule reads but those that say what they are. They are written after all else."""

from __future__ import annotations

from graphs import f32, graph, op
from roofline import Roofline

from superopt.cost.measurement_record import CostEstimate
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.ir.terms import OperatorTerm
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule

THREE = dict.fromkeys("xyz", "f[m, n]")
MODEL = graph(
    {name: f32(4, 16) for name in "abc"}, ["o"], [], [op("Add", "s", "b", "c"), op("Add", "o", "a", "s")]
)  # fmt: skip


def rules(*more: dict[str, object]) -> list[Rule]:
    word = {"id": "word", "forall": THREE, "lhs": ["Add(x, Add(y, z))"], "rhs": ["Sum(x, y, z)"]}
    turned = {"id": "turned", "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": ["Add(x, y)"], "rhs": ["Add(y, x)"]}
    return [parse_rule(row) for row in (word, turned, *more)]


def made(patterns: object) -> set[tuple[str, str]]:
    """(rule, operator that it makes) of moves."""
    assert isinstance(patterns, tuple)
    return {(p.rule.id, p.target[0].op) for p in patterns if isinstance(p.target[0], OperatorTerm)}


def test_what_makes_a_word_is_done_last_and_what_takes_one_apart_whenever() -> None:
    prepared = compile_rewrites(rules(), program_of(MODEL, infer(MODEL)))
    assert made(prepared.final_fusions.patterns) == {("word", "Sum")}
    assert ("word", "Add") in made(prepared.all_rewrites.patterns)
    assert ("word", "Sum") not in made(prepared.all_rewrites.patterns) | made(prepared.removing.patterns)
    assert made(prepared.every.patterns) == made(prepared.all_rewrites.patterns) | {("word", "Sum")}


def test_an_operator_that_some_rule_reads_is_no_word() -> None:
    reader = {"id": "reader", "forall": THREE, "lhs": ["Neg(Sum(x, y, z))"], "rhs": ["Sum(Neg(x), Neg(y), Neg(z))"]}
    prepared = compile_rewrites(rules(reader), program_of(MODEL, infer(MODEL)))
    assert prepared.final_fusions.patterns == ()
    assert ("word", "Sum") in made(prepared.all_rewrites.patterns)


class PricedForm(Roofline):
    """A device on which a Sum of three takes so many microseconds, and an Add 1000."""

    def __init__(self, us: float) -> None:
        super().__init__()
        self.prices = {"Sum": CostEstimate(us, "measured"), "Add": CostEstimate(1000.0, "measured")}

    def application(self, op, *args, **kwargs):
        return self.prices.get(op) or super().application(op, *args, **kwargs)


def test_a_word_is_written_where_it_is_cheaper() -> None:
    for us, operators in ((1500.0, ["Sum"]), (2500.0, ["Add", "Add"])):
        found = search(MODEL, rules(), PricedForm(us), SearchOptions(cache=False))
        assert [n.op for n in found.graph.nodes] == operators
