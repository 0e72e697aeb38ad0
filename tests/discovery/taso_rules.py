"""TASO's graphs in superopt's terms: the most general sizes at which both sides of a rule are well-formed.

Sizes are unknowns that operators make equal: every axis of every input is one of its own to begin with. Kernels keep
their 1 and 3, strides are 1 and padding keeps sizes, as in TASO's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.rules import Rule, parse_rule

__all__ = ["Untypable", "stated"]

Size = tuple[object, ...]  # summands: unknowns (int) and known numbers (("=", n))
Tree = object  # a Size, or a pair of Trees under "+"
CONV = "Conv({}, {}, dilations=[1, 1], group={}, pads=[{}, {}, {}, {}], strides=[1, 1])"
WINDOW = "dilations=[1, 1], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])"
POOLS = {"poolavg": "AveragePool({}, count_include_pad=1, " + WINDOW, "poolmax": "MaxPool({}, " + WINDOW}


class Untypable(Exception):
    """The two sides have no common type for symbolic sizes."""


class _Sizes:
    """Unknown sizes and what they turned out to be."""

    def __init__(self) -> None:
        self.known: dict[int, Size] = {}
        self.count = 0

    def fresh(self) -> Size:
        self.count += 1
        return (self.count,)

    def resolved(self, size: Size) -> Size:
        found: list[object] = []
        for part in size:
            if isinstance(part, int) and part in self.known:
                found.extend(self.resolved(self.known[part]))
            else:
                found.append(part)
        return tuple(found)

    def unify(self, first: Size, second: Size) -> None:
        a, b = self.resolved(first), self.resolved(second)
        if a == b:
            return
        if len(a) == len(b) > 1:
            for p, q in zip(a, b, strict=True):
                self.unify((p,), (q,))
            return
        for one, other in ((a, b), (b, a)):
            if len(one) == 1 and isinstance(one[0], int) and one[0] not in other:
                self.known[one[0]] = other
                return
        raise Untypable(f"{a} and {b}")


class _Tensor:
    def __init__(self, text: str, axes: Sequence[Tree]) -> None:
        self.text = text
        self.axes = tuple(axes)

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(_flat(a) for a in self.axes)


def _flat(tree: Tree) -> Size:
    if isinstance(tree, tuple) and tree and tree[0] == "+":
        return (*_flat(tree[1]), *_flat(tree[2]))
    assert isinstance(tree, tuple)
    return tree


def _fixed(number: int) -> Size:
    return (("=", number),)


class _Statement:
    def __init__(self, leaves: Mapping[str, tuple[int, ...]]) -> None:
        self.sizes = _Sizes()
        self.leaves = leaves
        self.inputs: dict[str, _Tensor] = {}
        self.made: dict[object, list[_Tensor]] = {}

    def tensor(self, term: object) -> _Tensor:
        """A term of at most a few applications (depth is a rule's)."""
        if isinstance(term, str):
            if term not in self.inputs:
                self.inputs[term] = _Tensor(term, self._axes(self.leaves[term]))
            return self.inputs[term]
        assert isinstance(term, tuple)
        op, output, *operands = term
        key = (op, *operands)
        if key not in self.made:
            self.made[key] = self._applied(str(op), [self.tensor(o) for o in operands])
        return self.made[key][output]

    def _axes(self, concrete: Sequence[int]) -> list[Size]:
        """Kernel sizes, and the one channel of a depthwise kernel, stay what they are."""
        if len(concrete) != 4 or concrete[2:] == (5, 5):
            return [self.sizes.fresh() for _ in concrete]
        channels = _fixed(1) if concrete[1] == 1 else self.sizes.fresh()
        return [self.sizes.fresh(), channels, _fixed(concrete[2]), _fixed(concrete[3])]

    def _applied(self, op: str, operands: list[_Tensor]) -> list[_Tensor]:
        if not operands:
            return [self._constant(op)]
        a = operands[0]
        match op:
            case "relu":
                return [_Tensor(f"Relu({a.text})", a.axes)]
            case "transpose":
                return [_Tensor(f"Transpose({a.text}, perm=[1, 0])", a.axes[::-1])]
            case "poolavg" | "poolmax":
                return [_Tensor(POOLS[op].format(a.text), a.axes)]
            case "enlarge":
                h, w = ((3 - _number(self.sizes.resolved(s))) // 2 for s in a.shape[2:])
                text = f"Pad({a.text}, pads=[0, 0, {h}, {w}, 0, 0, {h}, {w}], value=0.0)"
                return [_Tensor(text, (*a.axes[:2], _fixed(3), _fixed(3)))]
            case "split0" | "split1":
                return self._split(a, int(op[-1]))
        return [self._binary(op, a, operands[1])]

    def _binary(self, op: str, a: _Tensor, b: _Tensor) -> _Tensor:
        match op:
            case "matmul":
                self.sizes.unify(a.shape[1], b.shape[0])
                return _Tensor(f"MatMul({a.text}, {b.text})", (a.axes[0], b.axes[1]))
            case "ewadd" | "ewmul":
                self._alike(a.shape, b.shape)
                name = "Add" if op == "ewadd" else "Mul"
                return _Tensor(f"{name}({a.text}, {b.text})", self._common_axes(a, b))
            case "smul":
                return _Tensor(f"Mul({a.text}, {b.text})", a.axes)
            case "concat0" | "concat1":
                axis = int(op[-1])
                for i, (p, q) in enumerate(zip(a.shape, b.shape, strict=True)):
                    if i != axis:
                        self.sizes.unify(p, q)
                axes = list(self._common_axes(a, b))
                axes[axis] = ("+", a.axes[axis], b.axes[axis])
                return _Tensor(f"Concat({a.text}, {b.text}, axis={axis})", axes)
            case "conv" | "convrelu":
                return self._conv(op, a, b)
        raise Untypable(op)

    def _conv(self, op: str, x: _Tensor, k: _Tensor) -> _Tensor:
        """One group, or one per channel where the kernel has a single input channel."""
        kernel = self.sizes.resolved(k.shape[1])
        group: object = 1
        if kernel == _fixed(1) and self.sizes.resolved(x.shape[1]) != kernel:
            self.sizes.unify(x.shape[1], k.shape[0])
            group = ("size", k.shape[0])
        else:
            self.sizes.unify(x.shape[1], k.shape[1])
        u, v = (_number(self.sizes.resolved(s)) // 2 for s in k.shape[2:])
        text = CONV.format(x.text, k.text, f"<{len(self.groups)}>" if group != 1 else 1, u, v, u, v)
        if group != 1:
            self.groups.append(k.shape[0])
        text = f"Relu({text})" if op == "convrelu" else text
        return _Tensor(text, (x.axes[0], k.axes[0], *x.shape[2:]))

    @property
    def groups(self) -> list[Size]:
        if not hasattr(self, "_groups"):
            self._groups: list[Size] = []
        return self._groups

    def _alike(self, first: Sequence[Size], second: Sequence[Size]) -> None:
        if len(first) != len(second):
            raise Untypable("ranks")
        for p, q in zip(first, second, strict=True):
            self.sizes.unify(p, q)

    def _common_axes(self, a: _Tensor, b: _Tensor) -> tuple[Tree, ...]:
        return tuple(
            p if self.sizes.resolved(_flat(p)) == self.sizes.resolved(_flat(q)) and _depth(p) == _depth(q) else _flat(p)
            for p, q in zip(a.axes, b.axes, strict=True)
        )

    def _split(self, a: _Tensor, axis: int) -> list[_Tensor]:
        tree = a.axes[axis]
        if not (isinstance(tree, tuple) and tree[0] == "+"):
            raise Untypable("nothing to split")
        self.parts.append((_flat(tree[1]), _flat(tree[2])))
        text = f"Split({a.text}, axis={axis}, split=[<p{len(self.parts) - 1}>, <q{len(self.parts) - 1}>])"
        return [
            _Tensor(f"{text}[{i}]", (*a.axes[:axis], tree[1 + i], *a.axes[axis + 1 :])) for i in (0, 1)
        ]  # fmt: skip

    @property
    def parts(self) -> list[tuple[Size, Size]]:
        if not hasattr(self, "_parts"):
            self._parts: list[tuple[Size, Size]] = []
        return self._parts

    def _constant(self, name: str) -> _Tensor:
        a = self.sizes.fresh()
        number = len(self.constants)
        self.constants.append((a,))
        match name:
            case "Imm":
                return _Tensor(f"EyeLike(k=0, shape=[<c{number}>, <c{number}>])", (a, a))
            case "Iconv":
                eye = f"Reshape(EyeLike(k=0, shape=[<c{number}>, <c{number}>]), shape=[<c{number}>, <c{number}>, 1, 1])"
                text = f"Pad({eye}, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0)"
                return _Tensor(text, (a, a, _fixed(3), _fixed(3)))
            case "Cpool":
                text = f"Div(ConstantOfShape(shape=[<c{number}>, 1, 3, 3], value=1.0), 9.0)"
                return _Tensor(text, (a, _fixed(1), _fixed(3), _fixed(3)))
            case "One":
                shape = (a, *(self.sizes.fresh() for _ in range(3)))
                self.constants[number] = shape
                inner = ", ".join(f"<c{number}.{i}>" for i in range(4))
                return _Tensor(f"ConstantOfShape(shape=[{inner}], value=1.0)", shape)
        raise Untypable(name)

    @property
    def constants(self) -> list[tuple[Size, ...]]:
        if not hasattr(self, "_constants"):
            self._constants: list[tuple[Size, ...]] = []
        return self._constants


def _depth(tree: Tree) -> object:
    return ("+", _depth(tree[1]), _depth(tree[2])) if isinstance(tree, tuple) and tree[0] == "+" else None


def _number(size: Size) -> int:
    (part,) = size
    if not isinstance(part, tuple):
        raise Untypable("a kernel of unknown size")
    return int(part[1])


def stated(left: Sequence[object], right: Sequence[object], leaves: Mapping[str, tuple[int, ...]]) -> Rule:
    """The rule that two graphs of TASO's make, for symbolic sizes.

    Raises:
        Untypable: operators need sizes that cannot be equal.
        RuleError: what came out is not well-formed.
    """
    statement = _Statement(leaves)
    sides = [[statement.tensor(t) for t in side] for side in (left, right)]
    for a, b in zip(*sides, strict=True):
        statement._alike(a.shape, b.shape)
    letters: dict[object, str] = {}

    def written(size: Size) -> str:
        parts = []
        for part in statement.sizes.resolved(size):
            if isinstance(part, tuple):
                parts.append(str(part[1]))
            else:
                parts.append(letters.setdefault(part, f"n{len(letters)}"))
        return " + ".join(parts)

    forall = {n: f"f[{', '.join(written(s) for s in t.shape)}]" for n, t in sorted(statement.inputs.items())}

    def filled(text: str) -> str:
        for number, size in enumerate(statement.groups):
            text = text.replace(f"<{number}>", written(size))
        for number, (p, q) in enumerate(statement.parts):
            text = text.replace(f"<p{number}>", written(p)).replace(f"<q{number}>", written(q))
        for number, shape in enumerate(statement.constants):
            text = text.replace(f"<c{number}>", written(shape[0]))
            for i, size in enumerate(shape):
                text = text.replace(f"<c{number}.{i}>", written(size))
        return text

    texts = [[filled(t.text) for t in side] for side in sides]
    if set(letters.values()) - {
        n for s in forall.values() for n in s.replace("[", " ").replace("]", " ").replace(",", " ").split()
    }:
        raise Untypable("a size that no input has")
    lhs, rhs = texts
    return parse_rule({"id": "taso", "forall": forall, "lhs": lhs, "rhs": rhs})
