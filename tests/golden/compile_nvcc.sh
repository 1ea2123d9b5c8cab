#!/usr/bin/env bash
# Compiles a generated worker.cu with nvcc; no GPU is needed. usage: compile_nvcc.sh NVCC INCLUDE_DIR GENERATED_DIR
set -euo pipefail
nvcc=$1 include=$2 dir=$3
if [[ ! -x "$nvcc" ]]; then
  echo "skipped: there is no nvcc"
  exit 77
fi
cubin="$(mktemp)"
trap 'rm -f "$cubin"' EXIT
"$nvcc" -std=c++20 -O1 -arch=sm_90 -Werror=all-warnings "-I$include" -cubin -o "$cubin" "$dir/worker.cu"
grep -q ccks_worker "$cubin"
