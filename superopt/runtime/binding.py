"""An ONNX Runtime session whose inputs and outputs are bound to memory once, so that a step is the run and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as state
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue

from superopt.ir.errors import Unsupported, UsageError
from superopt.runtime.ort import RAISED, InferenceSession, give_back_after, lent, run, to_value, translated
from superopt.runtime.protocol import Bound
from superopt.runtime.watchdog import stopped_after

__all__ = ["bind"]

_LONGEST_RUN = 10.0  # seconds: a model that runs longer once is not timed


def bind(
    session: InferenceSession,
    feeds: Mapping[str, np.ndarray],
    *,
    like: Bound | None = None,
    over: Mapping[str, str] = MappingProxyType({}),
    longest: float = _LONGEST_RUN,
) -> Bound:
    """Bind inputs, and outputs where they are tensors, to memory that lives as long as the result.

    Args:
        session: the model.
        feeds: its inputs.
        like: the same model, bound before, whose outputs' memory is written to as well.
        over: outputs that are written over an input of the same size, by name.
        longest: seconds that the first run may take.

    Raises:
        UsageError, InvalidModel, ResourceLimit: as :func:`superopt.runtime.ort.run` does; the model has run once on
            return.
    """
    missing = [i.name for i in session.get_inputs() if i.name not in feeds]
    if missing:
        raise UsageError(f"input {missing[0]!r} was not given")
    feeds = lent(session, feeds)
    try:
        values = {i.name: to_value(feeds[i.name], i.type) for i in session.get_inputs()}
    except Unsupported:  # strings and sequences cannot be bound, but they can be run
        run(session, feeds, time_limit=longest)
        return Bound(lambda: run(session, feeds, keep=True), list, (session, feeds))
    steps = _Steps(session, values, like.outputs() if like is not None else [], over)
    with translated("", running=True):
        steps.prepare(longest)
    return Bound(steps.run, lambda: steps.made, (steps,))


class _Steps:
    """Runs of one session on fixed inputs. Outputs keep their memory too, unless their shapes turn out to change."""

    def __init__(
        self, session: InferenceSession, inputs: Mapping[str, Any], given: Sequence[Any], over: Mapping[str, str]
    ) -> None:
        self._session: Any = session  # ONNX Runtime leaves the methods used here untyped
        self._inputs = inputs
        self._given, self._over = given, over
        self._outputs = [o.name for o in session.get_outputs()]
        self._binding: Any = None
        self._fixed = False
        self.made: list[Any] = []

    def prepare(self, longest: float) -> None:
        """Run once, for so many seconds at most, to learn the outputs' shapes, then give them memory of their own.

        That run takes a piece for each value, and later ones a block for all beside what the arena still holds of
        them: so it gives its memory back (SegFormer, 2 MiB of weights: 445 MiB as bound, and 234 so).
        """
        options = state.RunOptions()
        give_back_after(options, self._session)
        with stopped_after(options, longest):
            self._run_fresh(options)
        if not all(v.is_tensor() and v.data_type() != "tensor(string)" for v in self.made):
            return
        self.made = list(self._given) or [
            self._inputs[self._over[name]]
            if name in self._over
            else OrtValue.ortvalue_from_shape_and_type(list(v.shape()), v.element_type())
            for name, v in zip(self._outputs, self.made, strict=True)
        ]
        self._binding = self._with_inputs()
        for name, value in zip(self._outputs, self.made, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        self._fixed = True

    def run(self) -> None:
        """Run once.

        Raises:
            InvalidModel, ResourceLimit, Unsupported: as :func:`superopt.runtime.ort.run`.
        """
        if self._fixed:
            try:
                self._session.run_with_iobinding(self._binding)
                return
            except RAISED as error:
                if "shape" not in str(error) and "dimensions" not in str(error):
                    with translated("", running=True):
                        raise
                self._fixed = False  # a shape that depends on data: bind the outputs afresh from now on
        with translated("", running=True):
            self._run_fresh()

    def _run_fresh(self, options: Any = None) -> None:
        binding = self._with_inputs()
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, options)
        self.made = binding.get_outputs()
        self._binding = binding

    def _with_inputs(self) -> Any:
        binding = self._session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        return binding
