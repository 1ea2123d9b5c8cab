#!/usr/bin/env bash
# The command line of ccks-gen: exit codes, where output goes, JSON that parses. usage: cli.sh CCKS_GEN SPECS_DIR PYTHON
set -uo pipefail
gen=$1 specs=$2 python=$3
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
failures=0

# expect CODE WORDS command...: the exit code, and words that standard output or standard error must hold.
expect() {
  local code=$1 words=$2 said status
  shift 2
  said="$("$@" 2>&1)"
  status=$?
  if [[ $status != "$code" || "$said" != *"$words"* ]]; then
    echo "FAILED: $* gave $status instead of $code, or not the words '$words':"
    echo "$said"
    failures=$((failures + 1))
  fi
}
# json CODE command...: standard output is one JSON value and nothing else.
json() {
  local code=$1 status
  shift
  "$@" >out.json 2>err.txt
  status=$?
  if [[ $status != "$code" || -s err.txt ]] || ! "$python" -m json.tool out.json >/dev/null; then
    echo "FAILED: $* gave $status instead of $code, or no JSON:"
    head -c 2000 out.json err.txt
    failures=$((failures + 1))
  fi
}

printf 'ccks: 1\nprogram: bad\nops: [{op: nothing}]\n' >bad.yaml
expect 0 "usage" bash -c "'$gen' --help | tr A-Z a-z"
expect 0 "ccks-gen 0." "$gen" --version
expect 0 "sound" "$gen" check "$specs/mlp.yaml"
expect 0 "matmul.u" "$gen" explain "$specs/mlp.yaml" --set n=17 --gpu a100
expect 0 "digraph" "$gen" viz "$specs/mlp.yaml" --dot
expect 1 "error[CCKS" "$gen" check bad.yaml
expect 1 "error[CCKS078]" "$gen" check "$specs/inline.yaml"
expect 1 "error[CCKS" "$gen" "$specs/inline.yaml" -o out
expect 2 "which SPEC" "$gen"
expect 2 "-o DIR" "$gen" "$specs/mlp.yaml"
expect 2 "No such file" "$gen" check nowhere.yaml
expect 2 "--set wants" "$gen" check "$specs/mlp.yaml" --set n
expect 2 "unknown GPU" "$gen" explain "$specs/mlp.yaml" --gpu h900
expect 2 "device" "$gen" "$specs/mlp.yaml" -o out --device fpga
expect 2 "not expected" "$gen" check "$specs/mlp.yaml" --no-such-option
[[ -e out ]] && { echo "FAILED: a refused run left something behind"; failures=$((failures + 1)); }

expect 0 "files in out" "$gen" "$specs/mlp.yaml" -o out
expect 0 "files in out" "$gen" "$specs/mlp.yaml" -o out
echo "// mine" >>out/worker.cpp
expect 2 "edited since" "$gen" "$specs/mlp.yaml" -o out
expect 0 "files in out" "$gen" "$specs/mlp.yaml" -o out --force
echo "mine" >file
expect 2 "cannot make folder" "$gen" "$specs/mlp.yaml" -o file
expect 2 "cannot" bash -c "'$gen' explain '$specs/mlp.yaml' >/dev/full"

json 0 "$gen" check "$specs/block.yaml" --json
json 0 "$gen" explain "$specs/block.yaml" --json
json 0 "$gen" viz "$specs/block.yaml" --json
json 0 "$gen" "$specs/block.yaml" -o block --json
json 1 "$gen" check bad.yaml --json
json 2 "$gen" check nowhere.yaml --json
"$python" -m json.tool block/manifest.json >/dev/null || failures=$((failures + 1))
exit $((failures > 0))
