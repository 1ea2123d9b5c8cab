// Box overlap against sets of bytes.
#include "codegen/check_box.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ccks::codegen::check {
namespace {

Operand operand(std::int64_t offset, std::array<std::int64_t, 4> dim, std::array<std::int64_t, 4> stride) {
  Operand o;
  o.offset = offset;
  o.dim = dim;
  o.stride = stride;
  return o;
}

std::set<std::int64_t> bytes(const Operand& o, const Window& w) {
  std::set<std::int64_t> out;
  for (std::int64_t a = w.lo[0]; a < w.hi[0]; ++a)
    for (std::int64_t b = w.lo[1]; b < w.hi[1]; ++b)
      for (std::int64_t c = w.lo[2]; c < w.hi[2]; ++c)
        for (std::int64_t d = w.lo[3]; d < w.hi[3]; ++d)
          for (std::int64_t i = 0; i < 4; ++i)
            out.insert(o.offset + 4 * (a * o.stride[0] + b * o.stride[1] + c * o.stride[2] + d * o.stride[3]) + i);
  return out;
}

bool share(const std::set<std::int64_t>& a, const std::set<std::int64_t>& b) {
  for (const std::int64_t x : a)
    if (b.contains(x)) return true;
  return false;
}

TEST(CheckBox, RowsOfOneMatrixMeetOnlyWhereTheyDo) {
  const Operand m = operand(64, {1, 1, 16, 32}, {0, 0, 32, 1});
  const Window top{{0, 0, 0, 0}, {1, 1, 8, 32}}, bottom{{0, 0, 8, 0}, {1, 1, 16, 32}},
      left{{0, 0, 0, 0}, {1, 1, 16, 16}}, right{{0, 0, 0, 16}, {1, 1, 16, 32}};
  EXPECT_FALSE(overlap(Box(m, top), Box(m, bottom)));
  EXPECT_FALSE(overlap(Box(m, left), Box(m, right)));
  EXPECT_TRUE(overlap(Box(m, top), Box(m, right)));
}

TEST(CheckBox, OtherShapesOfTheSameElementsAreComparedExactly) {
  const Operand flat = operand(0, {1, 1, 16, 32}, {0, 0, 32, 1}), heads = operand(0, {1, 16, 4, 8}, {0, 32, 8, 1});
  const Window head_two{{0, 0, 2, 0}, {1, 16, 3, 8}};
  EXPECT_FALSE(overlap(Box(flat, {{0, 0, 0, 0}, {1, 1, 16, 16}}), Box(heads, head_two)));
  EXPECT_FALSE(overlap(Box(flat, {{0, 0, 0, 24}, {1, 1, 16, 32}}), Box(heads, head_two)));
  EXPECT_TRUE(overlap(Box(flat, {{0, 0, 3, 16}, {1, 1, 4, 17}}), Box(heads, head_two)));
}

TEST(CheckBox, EvenAndOddColumnsDoNotMeet) {
  const Operand even = operand(0, {1, 1, 8, 16}, {0, 0, 32, 2}), odd = operand(4, {1, 1, 8, 16}, {0, 0, 32, 2});
  const Window all{{0, 0, 0, 0}, {1, 1, 8, 16}};
  EXPECT_FALSE(overlap(Box(even, all), Box(odd, all)));
  EXPECT_TRUE(overlap(Box(even, all), Box(even, all)));
}

TEST(CheckBox, OtherSpacesNeverMeet) {
  EXPECT_FALSE(overlap(Box(wire::Space::arena, 0, 64), Box(wire::Space::state, 0, 64)));
  EXPECT_TRUE(overlap(Box(wire::Space::arena, 0, 64), Box(wire::Space::arena, 63, 1)));
  EXPECT_FALSE(overlap(Box(wire::Space::arena, 0, 64), Box(wire::Space::arena, 64, 1)));
}

/// Never misses a shared byte; where strides nest in one tensor it sees none too many.
TEST(CheckBox, AgreesWithSetsOfBytes) {
  std::mt19937 random(7);
  const auto pick = [&](int lo, int hi) {
    return static_cast<std::int64_t>(std::uniform_int_distribution(lo, hi)(random));
  };
  int apart = 0, shared = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::array<std::int64_t, 4> dim{pick(1, 3), pick(1, 4), pick(1, 4), pick(1, 6)};
    const std::array<std::int64_t, 4> nested{dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1};
    const bool split = pick(0, 1) != 0;  // the same elements with two dims made one
    const Operand a = operand(0, dim, nested);
    const Operand b = split ? operand(0, {1, dim[0], dim[1] * dim[2], dim[3]}, {0, nested[0], dim[3], 1}) : a;
    Window u, v;
    for (std::size_t d = 0; d < 4; ++d) {
      u.lo[d] = pick(0, static_cast<int>(a.dim[d] - 1));
      u.hi[d] = pick(static_cast<int>(u.lo[d] + 1), static_cast<int>(a.dim[d]));
      v.lo[d] = pick(0, static_cast<int>(b.dim[d] - 1));
      v.hi[d] = pick(static_cast<int>(v.lo[d] + 1), static_cast<int>(b.dim[d]));
    }
    const bool want = share(bytes(a, u), bytes(b, v));
    EXPECT_EQ(overlap(Box(a, u), Box(b, v)), want);
    EXPECT_EQ(overlap(Box(b, v), Box(a, u)), want);
    ++(want ? shared : apart);
  }
  EXPECT_GT(apart, 1000);
  EXPECT_GT(shared, 1000);
}

TEST(CheckBox, NeverMissesASharedByteOfAnyStrides) {
  std::mt19937 random(11);
  const auto pick = [&](int lo, int hi) {
    return static_cast<std::int64_t>(std::uniform_int_distribution(lo, hi)(random));
  };
  const auto any = [&] {
    return operand(4 * pick(0, 40), {1, pick(1, 3), pick(1, 3), pick(1, 4)}, {0, pick(0, 30), pick(0, 12), pick(0, 5)});
  };
  int surplus = 0;
  for (int i = 0; i < 20000; ++i) {
    const Operand a = any(), b = any();
    const Window u{{}, a.dim}, v{{}, b.dim};
    const bool want = share(bytes(a, u), bytes(b, v)), got = overlap(Box(a, u), Box(b, v));
    EXPECT_TRUE(got || !want);
    surplus += got && !want ? 1 : 0;
  }
  EXPECT_LT(surplus, 6000);
}

}  // namespace
}  // namespace ccks::codegen::check
