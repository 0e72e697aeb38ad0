"""superopt in the place of other tools, and as a part of them: OnnxSlim, onnxsim, onnx_ir, Olive, optimum."""

EFFORT = "quick"  # an exporter waits
TIME_LIMIT = 60.0  # seconds
