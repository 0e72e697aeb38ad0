"""Ways to tamper with a certificate: each changes the data in place, or says that it cannot (``None``)."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

__all__ = ["TAMPERINGS"]

Data = dict[str, Any]


def _of(data: Data, pick: random.Random) -> Data:
    return pick.choice(data["derivations"])  # type: ignore[no-any-return]


def _summand(data: Data, pick: random.Random) -> Data:
    return pick.choice([m for d in data["derivations"] for side in ("left", "right") for m in d[side]])  # type: ignore[no-any-return]


def _steps(data: Data, kind: str) -> list[Data]:
    return [s for d in data["derivations"] for s in d["steps"] if s["kind"] == kind]


def _coefficient(data: Data, pick: random.Random) -> Any:
    _summand(data, pick)["c"] = "7/3"
    return True


def _unbounded(data: Data, pick: random.Random) -> Any:
    _summand(data, pick)["bound"].append("v__99")
    return True


def _bound_twice(data: Data, pick: random.Random) -> Any:
    bound = _summand(data, pick)["bound"]
    bound += bound[:1]
    return bool(bound) or None


def _captured(data: Data, pick: random.Random) -> Any:
    _summand(data, pick)["bound"].append("o0__0")
    return True


def _dropped(data: Data, pick: random.Random) -> Any:
    return _of(data, pick)[pick.choice(["left", "right"])].pop() and True


def _power(data: Data, pick: random.Random) -> Any:
    factors = _summand(data, pick)["factors"]
    if not factors:
        return None
    pick.choice(factors)[1] = "3"
    return True


def _index(data: Data, pick: random.Random) -> Any:
    elements = [f for f, _ in _summand(data, pick)["factors"] if f[0] == "element" and f[2]]
    if not elements:
        return None
    place = pick.choice(elements)[2]
    place[0] += " + 1"
    return True


def _guard_dropped_from_a_sum(data: Data, pick: random.Random) -> Any:
    guards = _summand(data, pick)["guards"]
    return (guards.pop(pick.randrange(len(guards))) and True) if guards else None


def _both_sides_alike(data: Data, pick: random.Random) -> Any:
    """The same wrong normal form on both sides: the steps are fine."""
    d = _of(data, pick)
    d["right"], d["steps"] = copy.deepcopy(d["left"]), []
    for side in ("left", "right"):
        d[side][0]["c"] = "5"
    return True


def _nothing(data: Data, pick: random.Random) -> Any:
    d = _of(data, pick)
    d["left"], d["right"], d["steps"] = [], [], []
    return True


def _false_hypothesis(data: Data, pick: random.Random) -> Any:
    _of(data, pick)["hypotheses"].append(
        pick.choice([["ge", "-1"], ["eq", "1"], ["ge", "o0__0 - 1"], ["ne", "o0__0 - 7"]])
    )
    return True


def _least(data: Data, pick: random.Random) -> Any:
    least = _of(data, pick)["least"]
    if not least:
        return None
    least[pick.choice(sorted(least))] += 1
    return True


def _false_fact(data: Data, pick: random.Random) -> Any:
    _of(data, pick)["facts"].append({"given": [], "goal": pick.choice([["ge", "o0__0 - 5"], ["ge", "-1"], None])})
    return True


def _part(data: Data, pick: random.Random) -> Any:
    names = [n for n in _of(data, pick)["least"] if "__" not in n]
    if not names:
        return None
    _of(data, pick)["parts"][names[0]] = "1"
    return True


def _digits(data: Data, pick: random.Random) -> Any:
    axis = pick.choice(_of(data, pick)["digits"] or [None])
    if axis is None:
        return None
    axis[0] = pick.choice([f"({axis[0]}) + 1", "1", f"2*({axis[0]})"])
    return True


def _another_axis(data: Data, pick: random.Random) -> Any:
    _of(data, pick)["digits"].append(["1"])
    return True


def _no_derivation(data: Data, pick: random.Random) -> Any:
    data["derivations"].pop()
    return True


def _twice(data: Data, pick: random.Random) -> Any:
    data["derivations"].append(copy.deepcopy(_of(data, pick)))
    return True


def _other_rule(data: Data, pick: random.Random) -> Any:
    rule = data["rule"]
    rule["rhs"] = [f"Mul({rule['rhs'][0]}, 2.0)"]
    return True


def _renamed(data: Data, pick: random.Random) -> Any:
    data["id"] += "-2"
    return True


def _precondition_dropped(data: Data, pick: random.Random) -> Any:
    if not data["rule"].get("where"):
        return None
    data["rule"]["where"] = []
    return True


def _verdict(data: Data, pick: random.Random) -> Any:
    data["verdict"]["verdict"] = "tested"
    return True


def _version(data: Data, pick: random.Random) -> Any:
    data[pick.choice(["version", "format"])] = 1
    return True


def _extra_step(data: Data, pick: random.Random) -> Any:
    d = _of(data, pick)
    if not d["left"]:
        return None
    d["steps"].append(
        {"kind": pick.choice(["drop", "lemma", "simplify"]), "before": copy.deepcopy(d["left"][:1]), "after": []}
    )
    return True


def _step_left_out(data: Data, pick: random.Random) -> Any:
    steps = next((d["steps"] for d in data["derivations"] if d["steps"]), None)
    return (steps.pop(pick.randrange(len(steps))) and True) if steps else None


def _step_repeated(data: Data, pick: random.Random) -> Any:
    steps = next((d["steps"] for d in data["derivations"] if d["steps"]), None)
    return (steps.append(copy.deepcopy(pick.choice(steps))), True) if steps else None


def _step_without_a_kind(data: Data, pick: random.Random) -> Any:
    steps = [s for d in data["derivations"] for s in d["steps"]]
    if not steps:
        return None
    pick.choice(steps)["kind"] = pick.choice(["axiom", "drop", ""])
    return True


def _match(data: Data, change: Callable[[Data], Any]) -> Any:
    for step in _steps(data, "match"):
        if change(step):
            return True
    return None


def _not_bijective(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        images = step["bijection"]
        if images:
            name = pick.choice(sorted(images))
            images[name] = pick.choice(["0", f"2*({images[name]})", "1"])
        return images

    return _match(data, change)


def _not_affine(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        images = step["bijection"]
        if images:
            name = pick.choice(sorted(images))
            images[name] = f"({images[name]})*({images[name]})"
        return images

    return _match(data, change)


def _shifted(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        images = step["bijection"]
        if images:
            images[sorted(images)[0]] += " + 1"
        return images

    return _match(data, change)


def _overlap_widened(data: Data, pick: random.Random) -> Any:
    return _match(data, lambda s: s["overlap"] and s["overlap"].pop(pick.randrange(len(s["overlap"]))))


def _overlap_narrowed(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        if step["before"][0]["bound"]:
            step["overlap"].append(["ge", f"{step['before'][0]['bound'][0]} - 1"])
        return step["before"][0]["bound"]

    return _match(data, change)


def _residue_left_out(data: Data, pick: random.Random) -> Any:
    return _match(data, lambda s: (s["only_a"] or s["only_b"]) and (s["only_a"] or s["only_b"]).pop() is not None)


def _residue_twice(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        found = step["only_a"] or step["only_b"]
        if found:
            found.append(copy.deepcopy(found[0]))
        return found

    return _match(data, change)


def _residue_wrong(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        found = [g for g in (*step["only_a"], *step["only_b"]) if g]
        if found:
            found[0][0][1] += " + 1"
        return found

    return _match(data, change)


def _residue_swapped(data: Data, pick: random.Random) -> Any:
    def change(step: Data) -> Any:
        step["only_a"], step["only_b"] = step["only_b"], step["only_a"]
        return step["only_a"] != step["only_b"]

    return _match(data, change)


def _dropped_though_possible(data: Data, pick: random.Random) -> Any:
    """A residue that is not contradictory, dropped instead of matched."""
    for d in data["derivations"]:
        for number, step in enumerate(d["steps"]):
            if step["kind"] == "match":
                d["steps"][number : number + 1] = [
                    {"kind": "drop", "before": [m], "after": []} for m in step["before"]
                ] + [{"kind": "simplify", "before": [], "after": step["after"]}]
                return True
    return None


def _multiplied(data: Data, pick: random.Random) -> Any:
    steps = _steps(data, "multiply")
    if not steps:
        return None
    # (One more power of a divisor that is not zero would still be a proof.)
    steps[0]["factor"] = [{"c": "1", "bound": [], "guards": [], "factors": [[["element", "x", ["=0"]], "1"]]}]
    return True


def _lemma(data: Data, pick: random.Random) -> Any:
    steps = _steps(data, "lemma")
    if not steps:
        return None
    steps[0]["before"][0]["c"] = "11"
    return True


TAMPERINGS: list[Callable[[Data, random.Random], Any]] = [
    _coefficient, _unbounded, _bound_twice, _captured, _dropped, _power, _index, _guard_dropped_from_a_sum,
    _both_sides_alike, _nothing, _false_hypothesis, _least, _false_fact, _part, _digits, _another_axis, _no_derivation,
    _twice, _other_rule, _renamed, _precondition_dropped, _verdict, _version, _extra_step, _step_left_out,
    _step_repeated, _step_without_a_kind, _not_bijective, _not_affine, _shifted, _overlap_widened, _overlap_narrowed,
    _residue_left_out, _residue_twice, _residue_wrong, _residue_swapped, _dropped_though_possible, _multiplied, _lemma,
]  # fmt: skip
