"""Send a model, follow its job, fetch the result: ``python optimize.py MODEL RESULT`` (files .onnx or .json)."""

import os
import sys

from superopt.client import Client

service = Client(os.environ.get("SUPEROPT_URL", "http://127.0.0.1:8000"), key=os.environ.get("SUPEROPT_KEY", ""))
model, result = sys.argv[1:]
job = service.submit(model, time_limit=60)  # in pieces; a cut connection is resumed
done = service.wait(job["id"])
while "continue" in done["links"]:  # the time limit ended the search
    done = service.wait(service.go_on(done["id"], time_limit=300)["id"])
service.result(done["id"], result)
report = service.report(done["id"])
print(f"{done['status']}: {report['cost']['before_us']:.0f} µs -> {report['cost']['after_us']:.0f} µs, estimated")
