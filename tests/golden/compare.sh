#!/usr/bin/env bash
# Generates a spec twice and compares: the two with each other, and with what is expected. CCKS_UPDATE_GOLDEN=1 replaces that.
# usage: compare.sh CCKS_GEN SPEC EXPECTED_DIR OUTPUT_DIR [ccks-gen options]
set -euo pipefail
gen=$1 spec=$2 expected=$3 output=$4
shift 4
rm -rf "$output" "$output.again"
"$gen" "$spec" -o "$output" "$@"
"$gen" "$spec" -o "$output.again" "$@"
diff -r "$output" "$output.again"
rm -rf "$output.again"
if [[ "${CCKS_UPDATE_GOLDEN:-}" == 1 ]]; then
  rm -rf "$expected"
  mkdir -p "$(dirname "$expected")"
  cp -r "$output" "$expected"
  exit 0
fi
diff -r "$expected" "$output"
