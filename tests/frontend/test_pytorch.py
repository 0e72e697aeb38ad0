"""PyTorch: modules as graphs, and ``torch.compile`` with equal outputs and gradients (skipped without PyTorch)."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import superopt  # noqa: E402
from superopt.frontend.pytorch import backend, explain, from_torch  # noqa: E402
from superopt.frontend.training import SGD, Adam, AdamW, train_step  # noqa: E402
from superopt.ir.errors import Unsupported  # noqa: E402
from superopt.runtime.onnx_runtime import ONNX_RUNTIME  # noqa: E402


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.b(F.relu(self.n(self.a(x)))))


class RepVGG(nn.Module):
    """The training form: three branches with a normalisation each."""

    def __init__(self) -> None:
        super().__init__()
        self.big, self.small = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.Conv2d(6, 6, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return F.relu(self.norms[0](self.big(x)) + self.norms[1](self.small(x)) + self.norms[2](x))


class MobileOne(nn.Module):
    """The training form: depthwise branches, then pointwise ones."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False) for _ in range(2))
        self.wide = nn.ModuleList(nn.Conv2d(6, 8, 1, bias=False) for _ in range(2))
        self.n, self.m = nn.BatchNorm2d(6), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        x = F.relu(sum(self.n(c(x)) for c in self.deep))
        return F.relu(sum(self.m(c(x)) for c in self.wide))


class Cached(nn.Module):
    """A block of attention that appends to a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Any, keys: Any, values: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).split(16, -1)
        k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        heads = [z.view(batch, -1, 4, 4).transpose(1, 2) for z in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, 16)
        return x + self.out(y), k, v


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.b(self.a(x)) * 0.5


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y - 1


@torch.library.custom_op("superopt_tests::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x * 3


odd.register_fake(lambda x: torch.empty_like(x))
odd.register_autograd(lambda ctx, g: g * 3)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return odd(self.linear(x)) + 1


class CutOff(nn.Module):
    """A straight-through estimator, and a part that no gradient passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            scale = self.linear(x).abs()
        return (x + (torch.round(x) - x).detach()) * self.linear(x) * scale


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 3


class OwnGradient(nn.Module):
    """A gradient that is not the function's."""

    def forward(self, x: Any) -> Any:
        return Tripled.apply(x * 2)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any, target: Any) -> Any:
        return F.cross_entropy(self.linear(x), target)


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# Module, inputs, and whether superopt takes all of it (None: some).
MODULES: dict[str, tuple[Any, tuple[Any, ...], bool | None]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), (normal(3, 4),), True),
    "residual": (lambda: Residual().eval(), (normal(2, 8, 6, 6),), True),
    "repvgg": (lambda: RepVGG().eval(), (normal(2, 6, 5, 5),), True),
    "mobileone": (lambda: MobileOne().eval(), (normal(2, 6, 5, 5),), True),
    "bert": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), (normal(2, 5, 16),), True,
    ),
    "gpt_with_cache": (Cached, (normal(1, 1, 16), normal(1, 3, 16), normal(1, 3, 16)), True),
    "lstm_cell": (lambda: nn.LSTMCell(4, 6), (normal(2, 4),), True),
    "lora": (Lora, (normal(3, 8),), True),
    "branching": (Branching, (normal(3, 4),), True),
    "custom": (Custom, (normal(3, 4),), False),
    "convnet": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
        (normal(2, 3, 8, 8),), True,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3), nn.LogSoftmax(-1)),
        (torch.tensor([[1, 3, 3], [0, 9, 2]]),), True,
    ),
    "batchnorm_in_training": (lambda: Residual().train(), (normal(2, 8, 6, 6),), True),
    "cut_off": (CutOff, (normal(3, 4),), True),
    "own_gradient": (OwnGradient, (normal(3, 4),), True),
    "loss": (Loss, (normal(3, 4), torch.tensor([1, 0, -100])), True),
    "views": (lambda: nn.Flatten(), (normal(2, 3, 4),), False),
    "channels_last": (lambda: nn.Conv2d(3, 4, 3), (normal(2, 3, 5, 5).to(memory_format=torch.channels_last),), True),
    "dropout_in_training": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()), (normal(3, 4),), False),
}  # fmt: skip


def loss(value: Any) -> Any:
    return sum((v**2).sum() for v in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_have_equal_outputs_and_gradients(name: str) -> None:
    make, inputs, taken = MODULES[name]
    torch.manual_seed(0)
    eager = make()
    other = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(other, backend=backend)
    for _ in range(2):
        found = []
        for module in (eager, compiled):
            torch.manual_seed(1)
            given = [v.clone().requires_grad_(v.is_floating_point()) for v in inputs]
            value = module(*given)
            loss(value).backward()
            found.append((value, [v.grad for v in given]))
        (want, grads), (got, others) = found
        pairs = list(zip(want, got, strict=True)) if isinstance(want, tuple) else [(want, got)]
        pairs += [(a, b) for a, b in zip(grads, others, strict=True) if a is not None]
        pairs += [(a.grad, b.grad) for a, b in zip(eager.parameters(), other.parameters(), strict=True)]
        pairs += list(zip(eager.buffers(), other.buffers(), strict=True))
        for a, b in pairs:
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
                assert a.is_contiguous() == b.is_contiguous()
                assert a.requires_grad == b.requires_grad
    told = explain(make(), inputs)
    assert told.regions
    assert (told.taken == len(told.regions)) == taken, str(told)
    assert all(r.reason for r in told.regions if r.graph is None)


def test_a_batch_of_any_size_and_its_gradients() -> None:
    """Sizes that vary are arguments of a region: it is a graph for each."""
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    regions: list[Any] = []

    def watched(region: Any, inputs: Any) -> Any:
        regions.append(backend(region, inputs))
        return regions[-1]

    compiled = torch.compile(module, backend=watched)
    for batch in (2, 5, 7, 3):
        found = []
        for function in (compiled, module):
            x = normal(batch, 4).requires_grad_()
            y = function(x)
            loss(y).backward()
            found.append((y, x.grad))
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert all(made.known and None not in made.known.values() for made in regions)
    assert sum(len(made.known) for made in regions) == 4


def test_gradients_of_gradients() -> None:
    torch._dynamo.reset()
    linear = nn.Linear(3, 3)

    def energy(x: Any) -> Any:
        return (linear(x) ** 3).sum()

    found = []
    for function in (energy, torch.compile(energy, backend=backend)):
        x = normal(2, 3).requires_grad_()
        (slope,) = torch.autograd.grad(function(x), x, create_graph=True)
        found.append(torch.autograd.grad((slope**2).sum(), x)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_errors_are_those_of_the_module() -> None:
    torch._dynamo.reset()
    table = nn.Embedding(4, 3)
    compiled = torch.compile(table, backend=backend)
    compiled(torch.tensor([1, 3]))
    for function in (table, compiled):
        with pytest.raises(IndexError, match="out of range"):
            function(torch.tensor([1, 9]))
    torch.testing.assert_close(compiled(torch.tensor([2, 0])), table(torch.tensor([2, 0])))


def test_the_entry_point_is_a_backend_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (name, target), = project["entry-points"]["torch_dynamo_backends"].items()  # fmt: skip
    assert name == "superopt"
    module, _, function = target.partition(":")
    chosen = getattr(__import__(module, fromlist=[function]), function)
    torch._dynamo.reset()
    layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = normal(3, 4)
    compiled = torch.compile(layer, backend=chosen, options={"effort": "quick", "time_limit": 20})
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)


def test_a_module_is_a_graph() -> None:
    module = RepVGG().eval()
    x = normal(1, 6, 5, 5)
    graph = from_torch(module, (x,))
    (name,) = [v.name for v in graph.inputs]
    slope = superopt.gradients(graph)
    from superopt.formats import to_onnx_bytes

    leaf = x.clone().requires_grad_()
    module(leaf).sum().backward()
    (output,) = [v.name for v in slope.outputs]
    found = ONNX_RUNTIME.load(to_onnx_bytes(slope)).run({name: x.numpy()}, [output])[output]
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-3, atol=1e-5)
    faster = superopt.optimize(module, (x,), effort="quick", time_limit=30)
    assert len(faster.graph.nodes) < len(graph.nodes)
    with pytest.raises(Unsupported, match="it draws random numbers"):
        from_torch(nn.Dropout(0.5).train(), (x,))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.05, momentum=0.9), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
        (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
        (AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    ],
    ids=["momentum", "adam", "adamw"],
)
@pytest.mark.parametrize("model", ["mlp", "residual", "convnet"])
def test_twenty_steps_are_pytorchs(model: str, ours: Any, theirs: Any) -> None:
    from superopt.formats import to_onnx_bytes

    torch.manual_seed(3)
    make, (x,), _ = MODULES[model]
    module = make()
    graph = from_torch(module, (x,))
    step = train_step(graph, "mse", ours)
    target = torch.randn_like(module(x)).detach()
    (name,) = [v.name for v in graph.inputs]
    session = onnxruntime.InferenceSession(to_onnx_bytes(step.graph))
    outputs = [v.name for v in step.graph.outputs]
    learnt = [p for p in module.parameters() if p.numel() > 1]
    optimiser = theirs(learnt)
    state: dict[str, np.ndarray] = {}
    for _ in range(20):
        optimiser.zero_grad()
        value = F.mse_loss(module(x), target)
        value.backward()
        optimiser.step()
        feeds = {name: x.numpy(), "target": target.numpy(), **state}
        found = dict(zip(outputs, session.run(outputs, feeds), strict=True))
        assert found[step.loss] == pytest.approx(value.item(), rel=2e-3, abs=1e-6)
        state = step.next_feeds(found)


def both(function: Any, *data: Any) -> list[list[Any]]:
    """Results and gradients of a function and of what it is compiled to, at each of the data, in this order."""
    torch._dynamo.reset()
    found: list[list[Any]] = []
    for called in (function, torch.compile(function, backend=backend)):
        found.append([])
        for x in data:
            leaf = x.clone().requires_grad_()
            y = called(leaf)
            y.backward(torch.arange(1, y.numel() + 1, dtype=y.dtype).view(y.shape))
            found[-1] += [y.detach(), leaf.grad]
    return found


@pytest.mark.parametrize(
    "function",
    [lambda x: F.logsigmoid(x * 500), lambda x: torch.logaddexp(x * 500, x.flip(0)), lambda x: x.norm(dim=-1),
     lambda x: F.normalize(x, dim=-1), lambda x: x.std(1), lambda x: x.prod(1), lambda x: torch.atan2(x, x.flip(0))],
    ids=["logsigmoid", "logaddexp", "norm", "normalize", "std", "prod", "atan2"],
)  # fmt: skip
def test_what_is_not_finite_is_as_pytorch_has_it(function: Any) -> None:
    """The region was taken with data at which both are finite."""
    want, got = both(function, normal(3, 4), torch.zeros(3, 4), torch.tensor([[-9.0, 0, 9, 0]]).repeat(3, 1))
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_inputs_that_overlap_are_written_to_as_the_module_does() -> None:
    def advanced(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    torch._dynamo.reset()
    compiled = torch.compile(advanced, backend=backend)
    compiled(torch.ones(3), torch.ones(3))
    for called in (advanced, compiled):
        whole = torch.ones(4)
        assert called(whole[:3], whole[1:]).tolist() == [4, 4, 2]
        assert whole.tolist() == [2, 2, 2, 1]


def test_many_gradients_at_once() -> None:
    """``is_grads_batched`` gives the backward pass batches of ``vmap``."""
    torch._dynamo.reset()
    found = []
    for function in (torch.sin, torch.compile(lambda x: torch.sin(x), backend=backend)):
        x = normal(4).requires_grad_()
        found.append(torch.autograd.grad(function(x), x, torch.eye(4), is_grads_batched=True)[0])
    torch.testing.assert_close(found[0], found[1])


def test_a_region_that_differentiates_in_forward_mode() -> None:
    torch._dynamo.reset()
    slopes = torch.func.jacfwd(lambda x: (x**3).sin())
    torch.testing.assert_close(torch.compile(slopes, backend=backend)(normal(4)), slopes(normal(4)))
    torch.func.jvp(torch.sin, (normal(4),), (normal(4),))  # no level is left open
    assert "forward mode" in str(explain(slopes, (normal(4),)))


def test_what_is_not_exported_is_named() -> None:
    assert "linalg_inv" in str(explain(lambda x: torch.linalg.inv(x), (torch.eye(3),)))


def test_exports_of_several_threads_leave_the_streams_alone() -> None:
    import sys
    import threading

    from superopt.frontend.pytorch.onnx_export import quiet

    before, inside = sys.stdout, threading.Event()

    def other() -> None:
        inside.set()
        with quiet():
            threading.Event().wait(0.2)

    thread = threading.Thread(target=other)
    with quiet():
        thread.start()
        inside.wait()
        threading.Event().wait(0.1)
    thread.join()
    assert sys.stdout is before


@pytest.mark.parametrize("made", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_training_step_is_done_once_a_call(made: Any) -> None:
    """The optimiser's region holds the weights and changes them: what is tried must not."""

    def losses(compiled: bool) -> list[float]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = made(model.parameters(), lr=0.01)
        x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))

        def step() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = torch.compile(step, backend=backend) if compiled else step
        return [float(run().detach()) for _ in range(4)]

    assert losses(True) == pytest.approx(losses(False), rel=1e-5)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.a(x), self.b(x)


@pytest.mark.parametrize("head", [0, 1])
def test_what_an_unused_result_depends_on_gets_no_gradient(head: int) -> None:
    model, x = TwoHeads(), torch.randn(3, 4)
    torch._dynamo.reset()
    torch.compile(model, backend=backend)(x)[head].square().sum().backward()
    got = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model(x)[head].square().sum().backward()
    for name, value in model.named_parameters():
        if value.grad is None:
            assert got[name] is None
        else:
            torch.testing.assert_close(got[name], value.grad)


def test_explain_leaves_everything_as_it_was() -> None:
    model, x = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)), torch.randn(8, 4)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert explain(model, (x,)).regions
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_a_tensor_by_itself_is_the_only_argument() -> None:
    graph = from_torch(nn.Linear(4, 3).eval(), torch.ones(2, 4))
    assert [str(v.type) for v in graph.inputs] == ["float32[2, 4]"]
    made = superopt.optimize(nn.Linear(4, 3).eval(), example_inputs=torch.ones(2, 4), effort="quick")
    assert not any("training mode" in note for note in made.report.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"x": torch.ones(2, 4)}, "example_inputs: dict is no tuple of arguments; write example_inputs=(x,)"),
     ((torch.ones(2, 5),), "example_inputs: the module cannot be called with them: mat1 and mat2 shapes"),
     ((), "example_inputs: the module cannot be called with them: ")],
    ids=["a dictionary", "another size", "none"],
)  # fmt: skip
def test_example_inputs_that_do_not_fit_are_named(given: object, said: str) -> None:
    with pytest.raises(superopt.errors.UsageError) as error:
        superopt.optimize(nn.Linear(4, 3).eval(), example_inputs=given)  # type: ignore[arg-type]
    assert str(error.value).startswith(said)


def test_a_module_in_training_mode_is_told_where_that_stands_in_the_way() -> None:
    module = nn.Dropout(0.5)
    with pytest.raises(superopt.errors.Unsupported, match=r"the module is in training mode: call module\.eval\(\)"):
        superopt.optimize(module.train(), example_inputs=torch.ones(3, 4))
    assert superopt.optimize(module.eval(), example_inputs=torch.ones(3, 4), effort="quick").report is not None


@pytest.mark.parametrize("module", [nn.Linear(4, 3), nn.BatchNorm1d(4)], ids=["the same", "other statistics"])
def test_a_module_in_training_mode_is_noted_and_left_as_it_is(module: nn.Module) -> None:
    before = copy.deepcopy(module.state_dict())
    made = superopt.optimize(module.train(), example_inputs=normal(3, 4), effort="quick").report
    assert made.notes[0].startswith("the module is in training mode: call module.eval()")
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"efort": "quick"}, "there is no option 'efort'; did you mean effort?"),
     ({"effort": "qick"}, "effort: 'qick' is none of quick, default, thorough; did you mean quick?"),
     ({"effort": "none", "tme_limit": 3}, "there is no option 'tme_limit'; did you mean time_limit?")],
)  # fmt: skip
def test_a_misspelt_option_of_torch_compile_is_told(options: dict[str, object], said: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=re.escape(said)):
        torch.compile(nn.Linear(4, 3).eval(), backend="superopt", options=options)(torch.ones(2, 4))
    torch._dynamo.reset()


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()).eval()  # two layers that are one


def test_an_exported_program_is_optimised() -> None:
    module, x = _layers(), torch.randn(3, 8)
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    before = len(program.model.graph)
    slimmed = superopt.onnx_program(program, settings={"target": "profile:cpu-epyc-2core"})
    assert slimmed is program
    assert len(program.model.graph) < before
    (y,) = program(x)
    torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)


def test_a_pass_of_onnx_ir_optimises_a_model_and_leaves_one_that_is_optimal() -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    from superopt.pipeline.integrations.onnx_ir_pass import SlimPass

    model = torch.onnx.export(_layers(), (torch.randn(3, 8),), dynamo=True, verbose=False).model
    passes = onnx_ir.passes.Sequential(SlimPass(settings={"target": "profile:cpu-epyc-2core"}))
    first = passes(model)
    assert first.modified
    second = passes(first.model)
    assert not second.modified
    assert [n.op_type for n in second.model.graph] == [n.op_type for n in first.model.graph]
