"""Five models as PyTorch users write them, at full size, for :mod:`lab.training`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CASES", "TrainingCase"]

BERT_WORDS, GPT_WORDS, WIDTH, HEADS = 30522, 50257, 768, 12


@dataclass(frozen=True)
class TrainingCase:
    """A model in training.

    Attributes:
        make: the module; its normalisations of batches keep their statistics.
        batch: from a generator, what goes in and what should come out.
        loss: by superopt's name, of :data:`superopt.frontend.training.LOSSES`.
        text: the model and its sizes.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    loss: str
    text: str

    def value(self, made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss, by PyTorch."""
        if self.loss == "mse":
            return functional.mse_loss(made, target)
        return functional.cross_entropy(made.reshape(-1, made.shape[-1]), target.reshape(-1))


class ResNetBlock(nn.Module):
    """The bottleneck of ResNet-50's first stage."""

    def __init__(self, wide: int = 256, narrow: int = 64) -> None:
        super().__init__()
        self.convs = nn.ModuleList([
            nn.Conv2d(wide, narrow, 1, bias=False), nn.Conv2d(narrow, narrow, 3, padding=1, bias=False),
            nn.Conv2d(narrow, wide, 1, bias=False),
        ])  # fmt: skip
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (narrow, narrow, wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norms[0](self.convs[0](x)))
        y = functional.relu(self.norms[1](self.convs[1](y)))
        return functional.relu(x + self.norms[2](self.convs[2](y)))


class RepVGGBlock(nn.Module):
    """The training form: a 3×3 and a 1×1 convolution and, where shapes allow, the input, each normalised."""

    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.big = nn.Conv2d(inner, out, 3, stride, 1, bias=False)
        self.small = nn.Conv2d(inner, out, 1, stride, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.own = nn.BatchNorm2d(inner) if inner == out and stride == 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.big(x)) + self.norms[1](self.small(x))
        return functional.relu(y if self.own is None else y + self.own(x))


class RepVGG(nn.Module):
    """RepVGG-A0, Ding et al., arXiv:2101.03697, table 2."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        inner = 3
        for width, depth in zip((48, 48, 96, 192, 1280), (1, 2, 4, 14, 1), strict=True):
            for position in range(depth):
                blocks.append(RepVGGBlock(inner, width, 2 if position == 0 else 1))
                inner = width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inner, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


class TransformerLayer(nn.Module):
    """A transformer's layer: normalised before each half (GPT-2, causal) or after it (BERT)."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = [f(x).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
        y = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.causal:
            x = x + self.attended(self.norms[0](x))
            return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        x = self.norms[0](x + self.attended(x))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """Two layers of BERT, with embeddings and a head that tells two classes apart."""

    def __init__(self, length: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(BERT_WORDS, WIDTH), nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        self.norm, self.layers = nn.LayerNorm(WIDTH), nn.Sequential(*(TransformerLayer(causal=False) for _ in range(2)))
        self.pool, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.norm(self.words(ids) + self.places))
        return self.head(torch.tanh(self.pool(x[:, 0])))


class Gpt(nn.Module):
    """Two layers of GPT-2; the head has the weights of the embedding."""

    def __init__(self, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(GPT_WORDS, WIDTH), nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        self.layers, self.norm = nn.Sequential(*(TransformerLayer(causal=True) for _ in range(2))), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.norm(self.layers(self.words(ids) + self.places)), self.words.weight)


def mlp() -> nn.Module:
    """A perceptron of three layers."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )  # fmt: skip


def normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda source: torch.randn(shape, generator=source)


def whole(limit: int, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda source: torch.randint(0, limit, shape, generator=source)


def both(
    x: Callable[[torch.Generator], torch.Tensor], target: Callable[[torch.Generator], torch.Tensor]
) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    return lambda source: (x(source), target(source))


CASES: Mapping[str, TrainingCase] = {
    "mlp": TrainingCase(mlp, both(normal(128, 784), whole(10, 128)), "cross-entropy", "784–512–256–10, 128 images"),
    "resnet_block": TrainingCase(
        lambda: ResNetBlock().eval(), both(normal(4, 256, 56, 56), normal(4, 256, 56, 56)), "mse",
        "bottleneck 256–64–64–256, 4 images of 56×56",
    ),
    "repvgg_a0": TrainingCase(
        lambda: RepVGG().eval(), both(normal(1, 3, 224, 224), whole(1000, 1)), "cross-entropy",
        "training form, 1 image of 224×224",
    ),
    "bert_2": TrainingCase(
        Bert, both(whole(BERT_WORDS, 1, 128), whole(2, 1)), "cross-entropy", "2 layers of 768, 128 tokens, 2 classes",
    ),
    "gpt2_2": TrainingCase(
        Gpt, both(whole(GPT_WORDS, 1, 64), whole(GPT_WORDS, 1, 64)), "cross-entropy",
        "2 layers of 768, 64 tokens, next of 50,257",
    ),
}  # fmt: skip
