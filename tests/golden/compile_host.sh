#!/usr/bin/env bash
# Compiles generated host sources with the compiler of the build. Leaves GENERATED_DIR.so.
# usage: compile_host.sh CXX INCLUDE_DIR GENERATED_DIR
set -euo pipefail
cxx=$1 include=$2 dir=$3
objects="$(mktemp -d)"
trap 'rm -rf "$objects"' EXIT
for source in scheduler module worker; do
  "$cxx" -std=c++20 -O1 -Wall -Wextra -Werror -fPIC "-I$include" -DCCKS_ISA=isa_golden -c "$dir/$source.cpp" -o "$objects/$source.o"
done
"$cxx" -shared "$objects"/*.o -o "$dir.so"
symbols="$(nm -D --defined-only "$dir.so")"  # not a pipe: grep -q may leave before nm has written all
grep -q ' T ccks_generated_program$' <<<"$symbols"
