"""What runs graphs. Nobody is told of it.

ONNX Runtime from 1.32 on keeps events of every session (names of files, graphs and nodes, messages of errors) in the
home folder and sends them to its maker, unless it is told otherwise before it is first imported: it is told here, for
this process and those that it starts. Whoever sets the variable has decided.
"""

import os

__all__: list[str] = []

if not os.environ.get("ORT_DISABLE_TELEMETRY"):
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
