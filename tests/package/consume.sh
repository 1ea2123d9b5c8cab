#!/usr/bin/env bash
# consume.sh SOURCE BUILD WORK CXX: installs BUILD into a scratch prefix and uses it as a stranger would: the README's
# example through CMake and through pkg-config, and the output of ccks-gen. Nothing of the source tree is on any path but
# the README's text.
set -euo pipefail
source="$1" build="$2" work="$3" cxx="$4"
prefix="$work/prefix"

rm -rf "$work"
mkdir -p "$work/consumer"
cmake --install "$build" --prefix "$prefix" >"$work/install.log"

# The first C++ block of the README is the consumer.
awk '/^```cpp$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$source/README.md" >"$work/consumer/example.cpp"
grep -q 'int main' "$work/consumer/example.cpp"
cat >"$work/consumer/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(ccks REQUIRED)
add_executable(example example.cpp)
target_compile_options(example PRIVATE -Wall -Wextra -Werror)
target_link_libraries(example PRIVATE ccks::ccks)
if(NOT EXISTS "${ccks_SPEC_DIR}/examples/transformer_block.yaml")
  message(FATAL_ERROR "the examples are not installed")
endif()
CMAKE

expect_output() {  # program
  local said
  said="$("$1")"
  echo "$1: $said"
  # 64 products of 0.5 and 2.
  [[ "$said" == "y[0] = 64 on "* ]]
}

echo "== find_package"
cmake -S "$work/consumer" -B "$work/consumer/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/consumer/build"
expect_output "$work/consumer/build/example"

echo "== pkg-config"
PKG_CONFIG_PATH="$(dirname "$(find "$prefix" -name ccks.pc)")"
export PKG_CONFIG_PATH
read -r -a flags <<<"$(pkg-config --cflags --libs ccks)"
"$cxx" -std=c++20 -O1 "$work/consumer/example.cpp" "${flags[@]}" -o "$work/consumer/by-pkg-config"
expect_output "$work/consumer/by-pkg-config"

echo "== installed programs"
"$prefix/bin/ccks-gen" check "$prefix/share/ccks/examples/mlp.yaml"
"$prefix/bin/ccks-run" "$prefix/share/ccks/examples/mlp.yaml" --device host --verify

echo "== generated code, as a module and linked in"
spec="$prefix/share/ccks/examples/mlp.yaml"
"$prefix/bin/ccks-gen" "$spec" -o "$work/generated/mlp" --device host
cat >"$work/generated/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(generated LANGUAGES CXX)
find_package(ccks REQUIRED)
add_subdirectory(mlp)
add_executable(linked linked.cpp)
target_link_libraries(linked PRIVATE mlp)
CMAKE
cat >"$work/generated/linked.cpp" <<'CPP'
#include <ccks/engine.hpp>
#include <cstdio>
#include "program.hpp"
int main() {
  const auto program = ccks::Program::from_generated(*ccks_program_mlp());
  auto device = ccks::open_device({.kind = "host"});
  if (!device.ok()) return 1;
  auto engine = ccks::Engine::create(std::move(*device), program);
  if (!engine.ok()) return 2;
  for (const auto& tensor : program.plan().tensors) {
    const std::vector<std::byte> zeros(tensor.max_bytes);
    if (tensor.kind == ccks::plan::TensorKind::weight && !engine->bind_weight(tensor.name, zeros).ok()) return 3;
  }
  if (!engine->start().ok()) return 4;
  std::printf("%s: %zu ops\n", program.plan().name, program.plan().ops.size());
}
CPP
cmake -S "$work/generated" -B "$work/generated/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/generated/build"
[[ "$("$work/generated/build/linked")" == "mlp: 4 ops" ]]
"$prefix/bin/ccks-run" "$spec" --module "$work/generated/build/mlp/libmlp_module.so" --device host --verify

echo "== an installed program compiles workers at run time"
jit() { (cd / && CCKS_CACHE_DIR="$work/cache" "$prefix/bin/ccks-run" "$spec" --jit-only sm_90a); }
if said="$(jit 2>&1)"; then
  echo "$said"
  [[ "$said" == *"units compiled in"* ]]
  said="$(jit)"
  echo "$said"
  [[ "$said" == *"from the cache in"* ]]
else
  echo "$said"
  [[ "$said" == *"libnvrtc"* ]]  # no compiler here, and it says so
fi
