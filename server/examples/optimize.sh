#!/bin/sh
# Send a model, follow its job, fetch the result: sh optimize.sh MODEL RESULT (files .json; .onnx as application/octet-stream)
set -eu
url=${SUPEROPT_URL:-http://127.0.0.1:8000}
key="Authorization: Bearer ${SUPEROPT_KEY:-none}"
media=application/vnd.superopt.graph+json

place=$(curl -sS --fail-with-body -D - -o /dev/null -H "$key" -H "Content-Type: $media" --data-binary "@$1" "$url/v1/jobs?time_limit=60" |
  tr -d '\r' | sed -n 's/^[Ll]ocation: //p')
curl -sSN --fail-with-body "$url$place/events" | sed -n 's/^event: //p' # until it ends
curl -sS --fail-with-body -H "Accept: $media" -o "$2" "$url$place/result"
curl -sS --fail-with-body "$url$place/report" | head -c 200
