#!/usr/bin/env bash
# Converts $SOURCE to $MODEL and verifies it, with the bounds of $GATES where there are any. Exit code 3: a bound is missed.
set -euo pipefail

: "${SOURCE:?the source model}" "${MODEL:?the file to make}" "${REPORTS:=reports}"
mkdir -p "$REPORTS"

# shellcheck disable=SC2086  # OPTIONS are words
mnnconvert --modelFile "$SOURCE" --MNNModel "$MODEL" --verify never ${OPTIONS:-}
mnnconvert verify "$SOURCE" "$MODEL" ${GATES:+--gates "$GATES"} \
  --junit "$REPORTS/junit.xml" --sarif "$REPORTS/verify.sarif"
