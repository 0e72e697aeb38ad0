"""Where a rule matches a model, and what refuses it elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from superopt import formats
from superopt.cost import ProfileCostModel, load_profile
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import SaturationLimits, saturate
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidOption, UsageError
from superopt.ir.graph import Graph, Value
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes.deliberate_rounding import guard_deliberate_rounding
from superopt.passes.rule_matches import RuleDirectionMatches, matches_of
from superopt.pipeline import rule_matches
from superopt.pipeline.optimization import select_rules
from superopt.pipeline.options import Options
from superopt.program.graph_program import program_of
from superopt.regions.region_egraph import lower, region_of
from superopt.rules import load_library
from superopt.rules.peepholes import peephole_library
from superopt.rules.scanner import RuleError

LIBRARY = load_library()
PRICES = ProfileCostModel(load_profile("cpu-epyc-2core"))
TINY = Path(__file__).parents[2] / "corpus" / "tiny"


def directions(graph: Graph, rule: str, mode: str = "standard") -> tuple[RuleDirectionMatches, ...]:
    return matches_of(graph, infer(graph), LIBRARY[rule], PRICES, floats=LIBRARY.floats(mode), sizes={})


def normalised() -> Graph:
    """A Conv with BatchNormalization, and a Relu with another."""
    builder = GraphBuilder("normalised")
    x = builder.input("x", "float32", [1, 3, 8, 8])

    def norm(value: Value, name: str) -> Value:
        parts = [builder.weight(f"{name}.{n}", (4,)) for n in ("scale", "bias", "mean", "variance")]
        return builder.op("BatchNormalization", value, *parts)

    y = builder.op("Conv", x, builder.weight("k", (4, 3, 3, 3)))
    builder.output(norm(builder.op("Relu", norm(y, "inner")), "outer"), "y")
    return builder.build()


def test_a_match_is_told_with_its_gain_and_a_difference_in_operators_by_both() -> None:
    forward, backward = directions(normalised(), "batchnorm-cde9")
    assert [p.refusal for p in forward.places] == ["", "Relu stands where the rule has Conv"]
    assert forward.places[0].gain_us > 0.0
    assert forward.matches == 1
    assert backward.refusal == "the model has no Add, ConstantOfShape, Div, Mul, Reshape, Sqrt, Sub"


def test_shapes_and_attributes_that_differ_are_named() -> None:
    builder = GraphBuilder("products")
    x = builder.input("x", "float32", [2, 5, 4])
    y = builder.op("Gemm", builder.input("z", "float32", [5, 4]), builder.weight("v", (6, 4)), transB=1)
    builder.output(builder.op("MatMul", x, builder.weight("w", (4, 6))), "o")
    builder.output(y, "p")
    made = builder.build()
    gemm, product = directions(made, "gemm-1abc")
    assert [p.refusal for p in gemm.places] == ["Gemm has transB 1, the rule has 0"]
    assert [p.refusal for p in product.places] == ["`x` has 3 axes, the rule has 2"]


def test_a_direction_that_floating_point_refuses_is_refused_by_mode() -> None:
    builder = GraphBuilder("clipped")
    x, y = (builder.input(n, "float32", [3, 4]) for n in "xy")
    builder.output(builder.op("Min", builder.op("Max", x, y), x), "o")
    made, rule = builder.build(), "activation-9e94"
    assert LIBRARY[rule].operators == {"Max", "Min"}
    standard, fast = (directions(made, rule, m)[0] for m in ("standard", "fast"))
    assert standard.refusal == "not as good in floating point under 'standard', whatever the operands are"
    assert (fast.refusal, fast.matches) == ("", 1)


def test_what_rounds_on_purpose_is_not_said_to_be_missing() -> None:
    builder = GraphBuilder("difference")
    x, y = (builder.input(n, "float32", [3, 4]) for n in "xy")
    builder.output(builder.op("Sub", x, builder.op("Sub", x, y)), "o")
    found = directions(builder.build(), "algebra-4b0e")
    assert "each Sub rounds on purpose, or is not understood: it stays as it is" in [d.refusal for d in found]


@pytest.mark.parametrize("model", ["bert", "resnet18", "lstm", "gru"])
def test_a_rule_that_changes_an_e_graph_matches(model: str) -> None:
    graph = formats.load(TINY / f"{model}.json")
    typing = infer(graph)
    program, _ = guard_deliberate_rounding(program_of(graph, typing))
    floats, changing = LIBRARY.floats("standard"), 0
    here = {s.op for s in program.steps}
    for rule in [r for r in sorted(LIBRARY) if LIBRARY[r].operators <= here][::6]:
        moves = compile_rewrites((LIBRARY[rule],), program, floats=floats).all_rewrites
        lowered = lower(region_of(program, [i for i in program.running if program.steps[i].op]), REGISTRY)
        before = lowered.graph.version
        saturate(lowered.graph, moves, SaturationLimits(rounds=1))
        if lowered.graph.version != before and not moves.groups:
            changing += 1
            assert any(d.matches for d in directions(graph, rule)), rule
    assert changing


def test_the_data_name_the_rule_and_its_places() -> None:
    found = rule_matches(normalised(), "batchnorm-cde9", options=Options(target="profile:cpu-epyc-2core"))
    assert (found["format"], found["version"]) == ("superopt.rule-matches", 1)
    assert (found["rule"], found["verdict"]) == ("batchnorm-cde9", "proved_all_sizes")
    assert [d["matches"] for d in found["directions"]] == [1, 0]


def test_the_data_say_whether_the_effort_uses_the_rule() -> None:
    options = Options(target="profile:cpu-epyc-2core", effort="quick")
    quick = peephole_library(REGISTRY)
    [left, *_] = [i for i in load_library() if i not in quick]
    assert rule_matches(normalised(), "batchnorm-cde9", options=options)["searched"]
    assert not rule_matches(normalised(), left, options=options)["searched"]
    assert rule_matches(normalised(), left, options=replace(options, effort="default"))["searched"]


def test_a_rule_of_the_user_s_is_shown_before_it_is_proved(tmp_path: Path) -> None:
    """A false one too: where it matches is what its author asks for, and only an optimisation needs a proof."""
    (tmp_path / "own.toml").write_text(
        '[[rule]]\nid = "false"\nforall = { x = "f[...]" }\nlhs = ["Relu(x)"]\nrhs = ["x"]\n', encoding="utf-8"
    )
    options = Options(target="profile:cpu-epyc-2core", rules=tmp_path)
    found = rule_matches(normalised(), "false", options=options)
    assert found["searched"]
    assert found["verdict"] != "proved_all_sizes"
    with pytest.raises(RuleError):
        select_rules(options)


def test_a_rule_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidOption, match="did you mean batchnorm-cde9"):
        rule_matches(normalised(), "batchnorm-cde8")
    with pytest.raises(UsageError, match="batchnorm is a family of rules"):
        rule_matches(normalised(), "batchnorm")
