// Seeded random specs, for differential tests: text -> parser -> plan -> device against the reference interpreter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ccks::test {

struct RandomProgram {
  std::string yaml;
  std::vector<std::pair<std::string, std::int64_t>> set;  // a value for each symbol, within its range
};

/// random_program gives a valid spec, the same for the same seed on every platform. Between them the seeds use every op
/// (but custom), views, symbolic dims, states, repeat, if and reports, in f32, f16 and bf16. Programs are tame, so that
/// a right device agrees with the interpreter: tensors have at most about 10,000 elements, values stay of order one,
/// and what decides by comparing (argmax, topk, route, conditions, rounding) sees only values that are exact on both
/// sides.
RandomProgram random_program(std::uint64_t seed);

}  // namespace ccks::test
