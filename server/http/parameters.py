"""What a client may ask of an optimization: read from the query, or from a form; refused with the parameter's name."""

from __future__ import annotations

import difflib
import math
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from superopt import cost
from superopt.ir.errors import UsageError
from superopt.rules.float_verdicts import MODES
from superopt.server.http.problems import HttpProblem
from superopt.server.settings import ServiceLimits
from superopt.server.views.catalogue import RuleLibraryView

__all__ = ["DESCRIPTIONS", "JobId", "canonical_id", "read_options", "refuse_unknown", "wrong"]


def canonical_id(text: str) -> str:
    """A job's id as the service writes it, however a client writes the UUID; text that is no UUID as it is."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return text


JobId = Annotated[str, BeforeValidator(canonical_id)]

_TARGET = re.compile(r"cpu|cuda|profile:[A-Za-z0-9_-]{1,80}")
_DIM = re.compile(r"([^=\s]{1,80})=([0-9]{1,9})")
_MANY = 200
# Words of options that the engine knows; the API process does without the engine, and a test compares them.
_WORDS = {
    "float": "floats",
    "runtime": "runtime",
    "effort": "effort",
    "functions": "functions",
}  # parameter → option of the pipeline

DESCRIPTIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "target": ({"type": "string", "default": "cpu", "pattern": f"^({_TARGET.pattern})$"},
               "what the result should be fast on: the server's CPU, or a recorded profile"),
    "time_limit": ({"type": "number", "minimum": 0}, "seconds for the search; /v1/limits has default and maximum"),
    "seed": ({"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0},
             "the inputs of the check, and those on which errors of fast algorithms are measured, follow from it; the "
             "model, prices and the seed decide which graph is chosen, unless the time limit ends the search or a "
             "benchmark on the server refuses the result"),
    "enable": ({"type": "array", "items": {"type": "string"}, "maxItems": _MANY}, "use only these rules or families"),
    "disable": ({"type": "array", "items": {"type": "string"}, "maxItems": _MANY}, "do without a rule or a family"),
    "dim": ({"type": "array", "items": {"type": "string", "pattern": r"^[^=\s]{1,80}=[1-9][0-9]{0,8}$"},
             "maxItems": _MANY}, "N=8: the size to cost a symbolic dimension at; it stays symbolic"),
    "float": ({"type": "string", "enum": [*MODES], "default": "standard"},
              "use rules where floats are safe (strict), also where the conditions of their safety hold (standard), or "
              "wherever they are true of the reals (fast)"),
    "runtime": ({"type": "string", "enum": ["onnxruntime", "openvino"], "default": "onnxruntime"},
                "what the model will run in"),
    "effort": ({"type": "string", "enum": ["quick", "default", "thorough"], "default": "default"},
               "how much work the search may do"),
    "functions": ({"type": "string", "enum": ["keep", "inline"], "default": "keep"},
                  "a call of the model's own function stays one where its body is not rewritten (keep), or its body "
                  "takes its place everywhere (inline)"),
    "opset": ({"type": "integer", "minimum": 1, "maximum": 99},
              "write the result at this version of ONNX's operators; without it, at the model's"),
    "precision": ({"type": "string", "enum": ["float32", "mixed", "mixed:float16", "mixed:bfloat16"],
                   "default": "float32"},
                  "operators and weights in float16 or bfloat16 as far as errors stay within a budget (mixed)"),
    "error": ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
              "the budget of errors of mixed precision, of an output's largest element; 1e-3 without it"),
    "measure": ({"type": "boolean", "default": False}, "time input and result side by side"),
    "strict": ({"type": "boolean", "default": False}, "fail if a node is not understood"),
}  # fmt: skip


def read_options(
    given: Callable[[str], Sequence[str]], limits: ServiceLimits, catalogue: RuleLibraryView
) -> dict[str, Any]:
    """Options as the child takes them.

    Args:
        given: all values of a parameter, as text.
        limits: bounds of the time limit.
        catalogue: the rules that may be named.

    Raises:
        HttpProblem: 400, naming the parameter.
    """
    for name in ("target", "time_limit", "seed", *_WORDS, "opset", "precision", "error", "measure", "strict"):
        if len(given(name)) > 1:
            raise wrong(name, "is given more than once")
        if "" in given(name):
            raise wrong(name, "is empty; leave it out instead")
    target = _last(given("target")) or "cpu"
    if not _TARGET.fullmatch(target):
        raise wrong("target", "is none of cpu, cuda and profile:NAME")
    if target.startswith("profile:") and target.removeprefix("profile:") not in cost.profile_names():
        raise wrong("target", f"there is no recorded profile {target[8:]!r}; GET /v1/profiles lists them")
    options: dict[str, Any] = {
        "target": target,
        "time_limit": _seconds(_last(given("time_limit")), limits),
        "seed": _seed(_last(given("seed"))),
        **{option: _word(name, _last(given(name))) for name, option in _WORDS.items()},
        "measure": _yes("measure", _last(given("measure"))),
        "strict": _yes("strict", _last(given("strict"))),
        "sizes": _sizes([d for d in given("dim") if d]),
    }
    if version := _last(given("opset")):
        options["opset"] = _version(version)
    if (precision := _word("precision", _last(given("precision")))) != "float32":
        options["precision"] = precision
    if share := _last(given("error")):
        options["error"] = _error(share, precision)
    for name in ("enable", "disable"):
        options[name] = sorted({v for v in given(name) if v})[: _MANY + 1]
        if len(options[name]) > _MANY:
            raise wrong(name, f"names more than {_MANY} rules")
    try:
        catalogue.library.select(enable=options["enable"], disable=options["disable"])
    except UsageError as error:
        raise wrong("enable" if options["enable"] else "disable", str(error)) from None
    return options


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Refuse a parameter that does not exist: its sender believes that it does something.

    Raises:
        HttpProblem: 400, naming each and what may be meant.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1, 0.5)
        there = f"there are {', '.join(known)}" if known else "there are none here"
        hint = f"did you mean {close[0]}?" if close else there
        raise HttpProblem(
            400, "invalid-parameter", f"{unknown[0][:80]}: there is no such parameter; {hint}",
            errors=[{"parameter": name[:80], "detail": "there is no such parameter"} for name in unknown[:_MANY]],
        )  # fmt: skip


def _last(values: Sequence[str]) -> str:
    return values[-1] if values else ""


def wrong(name: str, detail: str) -> HttpProblem:
    """The problem of a parameter."""
    return HttpProblem(400, "invalid-parameter", f"{name}: {detail}", errors=[{"parameter": name, "detail": detail}])


def _seconds(text: str, limits: ServiceLimits) -> float:
    if not text:
        return limits.search_seconds
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= limits.most_search_seconds:
        raise wrong("time_limit", f"is not a number of seconds from 0 to {limits.most_search_seconds:g}")
    return found


def _seed(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text) < 2**31):
        raise wrong("seed", "is not an integer from 0 to 2147483647")
    return int(text)


def _version(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 3 and int(text)):
        raise wrong("opset", "is not an integer from 1 to 99")
    return int(text)


def _error(text: str, precision: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < 1:
        raise wrong("error", "is not a number between 0 and 1")
    if precision == "float32":
        raise wrong("error", "is the budget of mixed precision; add precision=mixed")
    return found


def _word(name: str, text: str) -> str:
    schema, _ = DESCRIPTIONS[name]
    if text and text not in schema["enum"]:
        raise wrong(name, f"is none of {', '.join(schema['enum'])}")
    return text or str(schema["default"])


def _yes(name: str, text: str) -> bool:
    values = (
        {"": False}
        | dict.fromkeys(("true", "1", "on", "yes"), True)
        | dict.fromkeys(("false", "0", "off", "no"), False)
    )
    if text.lower() not in values:
        raise wrong(name, "is neither true nor false")
    return values[text.lower()]


def _sizes(items: Sequence[str]) -> dict[str, int]:
    if len(items) > _MANY:
        raise wrong("dim", f"is given more than {_MANY} times")
    sizes: dict[str, int] = {}
    for item in items:
        match = _DIM.fullmatch(item)
        if match is None or int(match[2]) < 1:
            raise wrong("dim", f"{item[:80]!r} is not NAME=SIZE with a positive integer")
        name, size = match[1], int(match[2])
        if sizes.setdefault(name, size) != size:
            raise wrong("dim", f"gives {name!r} two sizes: {sizes[name]} and {size}")
    return sizes
