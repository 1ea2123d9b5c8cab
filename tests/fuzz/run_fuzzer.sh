#!/usr/bin/env bash
# run_fuzzer.sh DIR PROGRAM CORPUS SECONDS: lets one fuzzer run from its seeds. What it finds to be worth keeping stays in
# the build; an input that fails is left beside it and named. CCKS_FUZZ_SECONDS overrides the time.
set -euo pipefail
dir="$1" name="$2" corpus="$3" seconds="${CCKS_FUZZ_SECONDS:-$4}"
tests="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

seeds=()
[[ ! -d "$corpus" ]] || seeds+=("$corpus")
if [[ "$name" == spec_fuzz ]]; then seeds+=("$tests/../spec/examples" "$tests/fuzz/hostile"); fi
work="$dir/found/$name"
mkdir -p "$work"
present=()
for seed in "${seeds[@]}"; do [[ ! -d "$seed" ]] || present+=("$seed"); done

# The limit is for the instrumented program with its shadow memory; hostile.py holds the plain one to 64 MB.
exec "$tests/sub_build.sh" run "$dir" "$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=8192 \
  -print_final_stats=1 -artifact_prefix="$work/failed-" "$work" "${present[@]}"
