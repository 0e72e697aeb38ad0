"""Recurrent cells, unrolled, with every gate's matrix products apart."""

from __future__ import annotations

from math import sqrt

from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def _gate_weights(
    b: GraphBuilder, gates: str | range, n_in: int, hidden: int
) -> list[tuple[SymbolicTensor, SymbolicTensor]]:
    """The input and state matrices of every gate."""
    return [
        (
            b.weight(f"W_{gate}", (n_in, hidden), scale=1 / sqrt(n_in)),
            b.weight(f"U_{gate}", (hidden, hidden), scale=1 / sqrt(hidden)),
        )
        for gate in gates
    ]


def nasrnn(name: str, *, steps: int = 8, hidden: int = 512, batch: int = 1) -> Graph:
    """The RNN cell found by neural architecture search, as in TASO's example: 8 gates, 16 products a step.

    The weights are those of one cell, shared by all steps.
    """
    b = GraphBuilder(name)
    weights = _gate_weights(b, range(8), hidden, hidden)
    xs = [b.input(f"x_{t}", "float32", (batch, hidden)) for t in range(steps)]
    state = b.weight("initial_state", (batch, hidden), scale=0.5)
    for t, x in enumerate(xs):
        with b.scope(f"step{t}"):
            g = [x @ w + state @ u for w, u in weights]
            m0 = g[0].relu() + g[3].sigmoid()
            m1 = g[1].sigmoid() + g[2].tanh()
            m2 = g[4].sigmoid() * g[5].tanh()
            m3 = g[6].sigmoid() * g[7].relu()
            n0 = m1.sigmoid() + m2.tanh()
            n1 = m0.tanh() * m3.tanh()
            state = (n0.tanh() * n1.tanh()).tanh()
    b.output(state, "state", shape=(batch, hidden))
    return b.build()


def lstm(name: str, *, steps: int = 8, hidden: int = 512, batch: int = 1, layers: int = 1) -> Graph:
    """LSTM unrolled: input, forget, cell and output gates each with two products and a bias."""
    b = GraphBuilder(name)
    sequence = [b.input(f"x_{t}", "float32", (batch, hidden)) for t in range(steps)]
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            weights = _gate_weights(b, "ifgo", hidden, hidden)
            biases = [b.weight(f"b_{gate}", (hidden,), scale=0.1) for gate in "ifgo"]
            h = b.weight("h_0", (batch, hidden), scale=0.5)
            c = b.weight("c_0", (batch, hidden), scale=0.5)
            outputs = []
            for t, x in enumerate(sequence):
                with b.scope(f"step{t}"):
                    i, f, g, o = (x @ w + h @ u + bias for (w, u), bias in zip(weights, biases, strict=True))
                    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                    h = o.sigmoid() * c.tanh()
                outputs.append(h)
            sequence = outputs
    for t, h in enumerate(sequence):
        b.output(h, f"h_{t + 1}", shape=(batch, hidden))
    return b.build()


def gru(name: str, *, steps: int = 8, hidden: int = 512, batch: int = 1) -> Graph:
    """GRU unrolled: reset, update and candidate gates, the reset applied before the candidate's product."""
    b = GraphBuilder(name)
    (wr, ur), (wz, uz), (wn, un) = _gate_weights(b, "rzn", hidden, hidden)
    br, bz, bn = (b.weight(f"b_{gate}", (hidden,), scale=0.1) for gate in "rzn")
    h = b.weight("h_0", (batch, hidden), scale=0.5)
    for t in range(steps):
        x = b.input(f"x_{t}", "float32", (batch, hidden))
        with b.scope(f"step{t}"):
            reset = (x @ wr + h @ ur + br).sigmoid()
            update = (x @ wz + h @ uz + bz).sigmoid()
            candidate = (x @ wn + (reset * h) @ un + bn).tanh()
            h = (1.0 - update) * candidate + update * h
    b.output(h, "h", shape=(batch, hidden))
    return b.build()
