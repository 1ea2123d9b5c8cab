#!/bin/sh
# compute-sanitizer over the one-kernel-per-op emission: memory, races in shared memory, uninitialized reads. The portable bodies
# (--code generic) and, where there is a compiler at run time, those made for the program (--code jit). With a compiler memory and
# uninitialized reads of resident workers, too, whose relays are no ops. Checks go side by side.
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
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
check() { # CODE TOOL EXAMPLE ARGUMENTS... by $arm
  code=$1 tool=$2 name=$3
  shift 3
  log="$logs/$arm.$code.$tool.$name.$(echo "$*" | tr -c 'a-z0-9\n' _)"
  if "$sanitizer" --tool "$tool" --error-exitcode 9 "$run" "$source/spec/examples/$name.yaml" "$@" --device cuda --code "$code" --arm "$arm" --verify >"$log" 2>&1; then
    echo "$arm $code $tool $name: clean"
  else
    echo "$arm $code $tool $name: FAILED"
    tail -20 "$log"
    touch "$logs/failed"
  fi
}
codes="generic"
"$run" "$source/spec/examples/mlp.yaml" --jit-only sm_90a --set d=64 --quiet >/dev/null 2>&1 && codes="generic jit"
arm=stream
for code in $codes; do
  for tool in memcheck racecheck initcheck; do
    check "$code" "$tool" mlp --set n=5 --set d=64 &
    check "$code" "$tool" moe_layer --set experts=8 --set top=2 --set d=64 --set ffn=32 --set t=9 &
    check "$code" "$tool" transformer_block --set n=7 --set d=64 --set heads=4 --set kv_heads=2 --set ffn=96 --set context=32 &
    check "$code" "$tool" conv_block --set batch=1 --set c=8 --set size=9 &
    check "$code" "$tool" llama --set layers=1 --set d=512 --set heads=8 --set kv_heads=2 --set ffn=512 --set vocab=512 --set context=64 &
    check "$code" "$tool" ragged_encoder --set d=64 --set heads=1 --set ffn=128 --set sequences=3 --lengths rows=43,7,10 &
    wait
  done
done
if [ "$codes" != generic ]; then
  arm=static  # lists, and so relays; racecheck knows nothing of barriers that count bytes, and reports every stage
  for tool in memcheck initcheck; do
    for tokens in 1 8 64; do
      check jit $tool moe_layer --set experts=40 --set top=4 --set d=1024 --set ffn=256 --set t=$tokens --iters 3 &
    done
    check jit $tool llama --set layers=2 --set d=1024 --set heads=16 --set kv_heads=4 --set ffn=2048 --set vocab=2048 --set context=512 --iters 3 &
    check jit $tool llama_batch --set batch=4 --set layers=2 --set d=1024 --set heads=16 --set kv_heads=4 --set ffn=2048 --set vocab=2048 --set context=512 --iters 3 &
    wait
  done
fi
[ ! -e "$logs/failed" ]
