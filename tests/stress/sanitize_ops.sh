#!/bin/sh
# compute-sanitizer over the one-kernel-per-op emission: memory, races in shared memory, uninitialized reads.
# usage: sanitize_ops.sh CCKS_RUN SOURCE_DIR; 77 where there is no compute-sanitizer or no GPU.
run=$1
source=$2
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
[ -n "$sanitizer" ] || { echo "skipped: there is no compute-sanitizer"; exit 77; }
if ! said=$("$run" "$source/spec/examples/mlp.yaml" --device cuda --arm stream --set d=64 --quiet 2>&1); then
  case $said in *unavailable*) echo "skipped: $said"; exit 77 ;; esac
  echo "$said"
  exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
check() {
  for tool in memcheck racecheck initcheck; do
    if "$sanitizer" --tool "$tool" --error-exitcode 9 "$run" "$@" --device cuda --code generic --arm stream --verify >"$log" 2>&1; then
      echo "$tool $1: clean"
    else
      echo "$tool $1: FAILED"
      tail -20 "$log"
      failed=1
    fi
  done
}
check "$source/spec/examples/mlp.yaml" --set n=5 --set d=64
check "$source/spec/examples/moe_layer.yaml" --set experts=8 --set top=2 --set d=64 --set ffn=32 --set t=9
check "$source/spec/examples/transformer_block.yaml" --set n=7 --set d=64 --set heads=4 --set kv_heads=2 --set ffn=96 --set context=32
check "$source/spec/examples/conv_block.yaml" --set batch=1 --set c=8 --set size=9
exit $failed
