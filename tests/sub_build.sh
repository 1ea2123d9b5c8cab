#!/usr/bin/env bash
# Builds programs of this project a second time, with other flags, and runs one. Called by CTest entries:
#   sub_build.sh build DIR SOURCE "targets..." cmake-arguments...
#   sub_build.sh run DIR PROGRAM arguments...
# Exit 77 (a skip) where the compiler for it is not there.
set -euo pipefail

mode="$1" dir="$2"
shift 2

build() {
  local source="$1" targets="$2" argument
  shift 2
  for argument in "$@"; do
    [[ "$argument" != -DCCKS_BUILD_FUZZERS=ON ]] || can_fuzz clang++ || exit 77
  done
  if command -v ccache >/dev/null; then set -- "$@" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  # shellcheck disable=SC2086
  if ! { cmake -S "$source" -B "$dir" -G Ninja -DCCKS_CUDA=OFF "$@" &&
    cmake --build "$dir" -j "${CCKS_JOBS:-$(nproc)}" --target $targets; } >"$dir.log" 2>&1; then
    tail -n 60 "$dir.log"
    exit 1
  fi
}

can_fuzz() {
  if ! command -v "$1" >/dev/null; then
    echo "skipped: $1 is not installed"
    return 1
  fi
  if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$1" -fsanitize=fuzzer,address -x c++ - -o "$dir.probe" 2>/dev/null; then
    echo "skipped: $1 has no libFuzzer runtime"
    return 1
  fi
  rm -f "$dir.probe"
}

run() {
  local program
  program="$(find "$dir" -type f -name "$1" -perm -u+x -print -quit 2>/dev/null)"
  shift
  if [[ -z "$program" ]]; then
    echo "skipped: not built"
    exit 77
  fi
  # ThreadSanitizer of GCC 12 cannot live with the address randomisation of newer kernels.
  local -a fixed=(setarch "$(uname -m)" -R)
  "${fixed[@]}" true 2>/dev/null || fixed=()
  export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 ${TSAN_OPTIONS:-}"
  export UBSAN_OPTIONS="halt_on_error=1 print_stacktrace=1 ${UBSAN_OPTIONS:-}"
  export CCKS_SANITIZED=1
  exec "${fixed[@]}" "$program" "$@"
}

mkdir -p "$(dirname "$dir")"
"$mode" "$@"
