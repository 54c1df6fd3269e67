#!/usr/bin/env bash
# Verifies each MNN file that is named against the .onnx or .tflite file beside it; exit code 3 where one is missed.
set -uo pipefail

code=0
for model in "$@"; do
  for source in "${model%.mnn}".onnx "${model%.mnn}".tflite; do
    [ -f "$source" ] || continue
    mnnconvert verify "$source" "$model" --quiet || code=$?
  done
done
exit "$code"
