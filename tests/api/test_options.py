"""Options of ``superopt.optimize``: the same names as the command line's, typed, and told where they are wrong."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.main import get_command

import superopt
from superopt.cli import app
from superopt.frontend import GraphBuilder
from superopt.ir.errors import SuperoptError
from superopt.pipeline import Options
from superopt.pipeline.keyword_options import Settings, options_of
from superopt.pipeline.options import EFFORTS, FUNCTIONS, OBJECTIVES, PRECISIONS
from superopt.rules.float_verdicts import MODES
from superopt.runtime.protocol import RUNTIMES

# What is about files, processes and what is shown: it decides nothing of the result.
OF_THE_COMMAND = {"output", "workers", "cluster", "discover", "explain", "json", "html", "certificates", "force"}


def flags() -> set[str]:
    """The command's options by their long names."""
    command: Any = get_command(app)
    options = [p for p in command.commands["optimize"].params if p.param_type_name == "option"]
    return {max(o.opts, key=len).removeprefix("--").replace("-", "_") for o in options} - {"help"}


def test_the_command_line_and_python_have_the_same_names() -> None:
    assert flags() - OF_THE_COMMAND - {"no_check"} == set(get_type_hints(Settings))
    assert flags() >= OF_THE_COMMAND


def test_every_option_can_be_set_by_its_name() -> None:
    every: dict[str, Any] = {
        "target": "cuda", "runtime": "openvino", "time_limit": 7, "memory_limit": "2G", "seed": 3, "rules": "mine",
        "enable": ["conv"], "disable": "values", "dim": {"N": 8}, "threads": 2, "measure": True, "verify": "certify",
        "check": "full", "strict": True, "float": "fast", "effort": "quick", "objective": "memory",
        "functions": "inline", "opset": 18, "precision": "mixed", "error": 1e-2,
    }  # fmt: skip
    assert set(every) == set(get_type_hints(Settings))
    made = options_of(None, every)
    assert made == Options(
        target="cuda", runtime="openvino", time_limit=7, memory_limit=2 << 30, seed=3, rules=Path("mine"),
        enable=("conv",), disable=("values",), sizes={"N": 8}, threads=2, measure=True, certify=True, full_check=True,
        strict=True, floats="fast", effort="quick", objective="memory", functions="inline", opset=18,
        precision="mixed", error=1e-2,
    )  # fmt: skip
    assert all(getattr(made, f.name) != getattr(Options(), f.name) for f in fields(Options) if f.name != "check")
    assert options_of(made, {"check": False}).check is False


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("float", MODES),
        ("effort", EFFORTS),
        ("objective", OBJECTIVES),
        ("runtime", RUNTIMES),
        ("functions", FUNCTIONS),
        ("precision", PRECISIONS),
    ],
)
def test_the_types_list_the_words_that_are_known(name: str, words: Any) -> None:
    assert set(get_args(get_type_hints(Settings)[name])) == set(words)


@pytest.mark.parametrize(
    ("given", "option", "message"),
    [
        ({"tmie_limit": 3}, "tmie_limit", "there is no option 'tmie_limit'; did you mean time_limit?"),
        ({"efort": "quick"}, "efort", "there is no option 'efort'; did you mean effort?"),
        ({"xyz": 1}, "xyz", "there is no option 'xyz'; known: check, dim, disable, "),
        ({"memory_limit": "1X"}, "memory_limit", "memory_limit: '1X' is not a size in bytes; write for example 2G"),
        ({"memory_limit": 0}, "memory_limit", "memory_limit: 0 is less than 1"),
        ({"memory_limit": 1.5}, "memory_limit", "memory_limit: 1.5 is not a number of bytes"),
        ({"time_limit": -1}, "time_limit", "time_limit: -1 is less than 0; None is no limit"),
        ({"time_limit": float("nan")}, "time_limit", "time_limit: nan is less than 0"),
        ({"time_limit": "3"}, "time_limit", "time_limit: '3' is not a number of seconds"),
        ({"effort": "thoroug"}, "effort", "effort: 'thoroug' is none of quick, default, thorough; did you mean thor"),
        ({"float": "strikt"}, "float", "float: 'strikt' is none of strict, standard, fast; did you mean strict?"),
        ({"runtime": "onnx"}, "runtime", "runtime: 'onnx' is none of onnxruntime, openvino; did you mean onnxruntime"),
        ({"target": "gpu"}, "target", "there is no target 'gpu'; targets: cpu, cuda, profile:NAME"),
        ({"check": "ful"}, "check", "check: 'ful' is none of quick, full, True, False; did you mean full?"),
        ({"verify": True}, "verify", "verify: True is none of test, certify"),
        ({"dim": {"N": 0}}, "dim", "dim: {'N': 0} is not a dictionary of positive sizes"),
        ({"dim": ["N=8"]}, "dim", "dim: ['N=8'] is not a dictionary"),
        ({"seed": 1.5}, "seed", "seed: 1.5 is not a whole number"),
        ({"seed": True}, "seed", "seed: True is not a whole number"),
        ({"threads": 0}, "threads", "threads: 0 is less than 1"),
        ({"precision": "half"}, "precision", "precision: 'half' is none of float32, mixed, mixed:float16, mixed:bfl"),
        ({"precision": "mixed", "error": 2}, "error", "error: 2 is no share of an output between 0 and 1"),
        ({"error": 1e-3}, "error", "error: is the budget of mixed precision; add precision='mixed'"),
        ({"precision": "mixed", "error": "1%"}, "error", "error: '1%' is not a share of an output's largest element"),
        ({"measure": "yes"}, "measure", "measure: 'yes' is not True or False"),
        ({"disable": [3]}, "disable", "disable: [3] is not a sequence of names"),
        ({"rules": 3}, "rules", "rules: 3 is not the path of a folder"),
        ({"options": {"seed": 1}}, "options", "options: a dict is no superopt.Options; write optimize(model, **opt"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_named(given: dict[str, Any], option: str, message: str) -> None:
    with pytest.raises(superopt.errors.InvalidOption) as error:
        superopt.optimize(plain(), **given)
    assert str(error.value).startswith(message)
    assert error.value.option == option


def test_a_misspelt_part_of_superopt_is_suggested_among_the_rules() -> None:
    with pytest.raises(superopt.errors.InvalidOption, match=r"called 'algoritms'; did you mean algorithms?"):
        superopt.optimize(plain(), disable=["algoritms"])


def test_all_errors_are_of_one_public_hierarchy() -> None:
    public = {n: getattr(superopt.errors, n) for n in superopt.errors.__all__}
    every, left = {SuperoptError}, [SuperoptError]
    while left:
        children = left.pop().__subclasses__()
        every.update(c for c in children if c.__module__ == "superopt.ir.errors")
        left += children
    assert set(public.values()) == every
    assert issubclass(superopt.errors.InvalidOption, superopt.errors.UsageError)
    inner = superopt.errors.InvalidOption("is wrong", option="a", suggestion="b", where="x").within("y")
    assert (str(inner), inner.option, inner.suggestion) == ("y, x: is wrong; did you mean b?", "a", "b")


def plain() -> Any:
    builder = GraphBuilder("plain")
    builder.output(builder.op("Relu", builder.input("x", "float32", [4])), "y")
    return builder.build()


class _Module:
    """Stands where PyTorch is not installed for a module: only the class's name is asked for."""

    training = False


Net = type("Net", (type("Module", (_Module,), {"__module__": "torch.nn.modules.module"}),), {})


def test_a_module_without_example_inputs_is_told_to_name_them() -> None:
    with pytest.raises(superopt.errors.InvalidOption) as error:
        superopt.optimize(Net())
    assert str(error.value) == (
        "example_inputs: a torch.nn.Module needs the arguments of a call; write superopt.optimize(module, "
        "example_inputs=(x,))"
    )


def test_example_inputs_of_what_is_no_module_are_refused() -> None:
    with pytest.raises(superopt.errors.InvalidOption, match=r"example_inputs: a Graph is no torch.nn.Module"):
        superopt.optimize(plain(), example_inputs=(1,))
