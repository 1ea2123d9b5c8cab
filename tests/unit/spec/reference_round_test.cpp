// Rounding to storage types, packing, and the measure of error.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::uint16_t pack16(Dtype dtype, double value) {
  std::uint16_t bits = 0;
  pack_values(dtype, std::span(&value, 1), std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}
double unpack16(Dtype dtype, std::uint16_t bits) {
  double value = 0;
  unpack_values(dtype, std::as_bytes(std::span(&bits, 1)), std::span(&value, 1));
  return value;
}

TEST(ReferenceRound, F16Specials) {
  EXPECT_EQ(round_to(Dtype::f16, 65504), 65504);
  EXPECT_EQ(round_to(Dtype::f16, 65519.99), 65504);
  EXPECT_EQ(round_to(Dtype::f16, 65520), kInf);  // the tie goes to the even neighbour, which is past the end
  EXPECT_EQ(round_to(Dtype::f16, -65520), -kInf);
  EXPECT_EQ(round_to(Dtype::f16, 1 + 0x1p-11), 1);
  EXPECT_EQ(round_to(Dtype::f16, 1 + 0x3p-11), 1 + 0x1p-9);
  EXPECT_EQ(round_to(Dtype::f16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10);  // f32 on the way would lose the 2^-40
  EXPECT_EQ(round_to(Dtype::f16, 0x1p-24), 0x1p-24);
  EXPECT_EQ(round_to(Dtype::f16, 0x1p-25), 0);
  EXPECT_EQ(round_to(Dtype::f16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(Dtype::f16, 0x3p-25), 0x1p-23);
  EXPECT_TRUE(std::signbit(round_to(Dtype::f16, -0x1p-30)));
  EXPECT_EQ(round_to(Dtype::f16, kInf), kInf);
  EXPECT_TRUE(std::isnan(round_to(Dtype::f16, kNan)));
}

TEST(ReferenceRound, Bf16Specials) {
  EXPECT_EQ(round_to(Dtype::bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(Dtype::bf16, 1 + 0x3p-8), 1 + 0x1p-6);
  EXPECT_EQ(round_to(Dtype::bf16, 0x1.fep127), 0x1.fep127);
  EXPECT_EQ(round_to(Dtype::bf16, 0x1.ffp127), kInf);
  EXPECT_EQ(round_to(Dtype::bf16, 0x1p-133), 0x1p-133);
  EXPECT_EQ(round_to(Dtype::bf16, 0x1p-134), 0);
  EXPECT_EQ(round_to(Dtype::bf16, -0x1.8p-134), -0x1p-133);
  EXPECT_EQ(round_to(Dtype::bf16, 1e300), kInf);
  EXPECT_TRUE(std::isnan(round_to(Dtype::bf16, kNan)));
}

TEST(ReferenceRound, IntegersSaturateAndBoolsAreTruths) {
  EXPECT_EQ(round_to(Dtype::i32, 2.5), 2);
  EXPECT_EQ(round_to(Dtype::i32, 1e20), 2147483647);
  EXPECT_EQ(round_to(Dtype::i32, -1e20), -2147483648.0);
  EXPECT_EQ(round_to(Dtype::i32, kNan), 0);
  EXPECT_LT(round_to(Dtype::i64, 1e30), 0x1p63);
  EXPECT_EQ(round_to(Dtype::i64, 9007199254740991.0), 9007199254740991.0);
  EXPECT_EQ(round_to(Dtype::boolean, -0.25), 1);
  EXPECT_EQ(round_to(Dtype::boolean, 0), 0);
}

// Every bit pattern, and the midpoint to its neighbour from both sides, through rounding and packing alike.
void check_all_patterns(Dtype dtype, std::uint16_t infinity) {
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const double value = unpack16(dtype, low), next = unpack16(dtype, high);
    ASSERT_EQ(round_to(dtype, value), value) << bits;
    ASSERT_EQ(pack16(dtype, value), low);
    ASSERT_EQ(pack16(dtype, -value), low | 0x8000);
    if (high == infinity) continue;
    const double middle = value + (next - value) / 2;
    ASSERT_EQ(round_to(dtype, middle), bits % 2 ? next : value) << bits;
    for (const double near : {std::nextafter(middle, 0), middle, std::nextafter(middle, kInf)}) {
      ASSERT_EQ(unpack16(dtype, pack16(dtype, near)), round_to(dtype, near)) << bits;
      ASSERT_EQ(round_to(dtype, near), near == middle ? round_to(dtype, middle) : near < middle ? value : next) << bits;
    }
  }
  EXPECT_EQ(unpack16(dtype, infinity), kInf);
  EXPECT_EQ(pack16(dtype, -kInf), infinity | 0x8000);
  EXPECT_TRUE(std::isnan(unpack16(dtype, pack16(dtype, kNan))));
  EXPECT_TRUE(std::isnan(unpack16(dtype, infinity + 1)));
}

TEST(ReferenceRound, EveryF16) { check_all_patterns(Dtype::f16, 0x7c00); }
TEST(ReferenceRound, EveryBf16) { check_all_patterns(Dtype::bf16, 0x7f80); }

TEST(ReferenceRound, PackAndUnpackKeepValues) {
  const std::vector<double> values{-3, 0, 1, 127};
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64}) {
    std::vector<std::byte> bytes(values.size() * wire::dtype_bytes(dtype));
    std::vector<double> back(values.size());
    pack_values(dtype, values, bytes);
    unpack_values(dtype, bytes, back);
    EXPECT_EQ(back, values) << wire::dtype_name(dtype);
  }
  std::vector<std::byte> bytes(4);
  std::vector<double> back(4);
  pack_values(Dtype::boolean, values, bytes);
  unpack_values(Dtype::boolean, bytes, back);
  EXPECT_EQ(back, (std::vector<double>{1, 0, 1, 1}));
}

TEST(ReferenceError, RelativeToValueOrScale) {
  const std::vector<double> want{3, 4, 0, 0};  // root mean square 2.5
  EXPECT_EQ(max_relative_error(want, want), 0);
  EXPECT_DOUBLE_EQ(max_relative_error(std::vector<double>{3, 5, 0, 0}, want), 0.25);
  EXPECT_DOUBLE_EQ(max_relative_error(std::vector<double>{3, 4, 0.5, 0}, want), 0.2);
}

TEST(ReferenceError, NotANumberIsNeverClose) {
  const std::vector<double> want{1, 2};
  EXPECT_EQ(max_relative_error(std::vector<double>{kNan, 2}, want), kInf);
  EXPECT_EQ(max_relative_error(std::vector<double>{1, -kInf}, want), kInf);
  EXPECT_EQ(max_relative_error(std::vector<double>{1}, want), kInf);
  EXPECT_EQ(max_relative_error(std::vector<double>{1, kInf}, std::vector<double>{1, kInf}), 0);
  EXPECT_EQ(max_relative_error(std::vector<double>{1, kInf}, std::vector<double>{1, -kInf}), kInf);
  EXPECT_EQ(max_relative_error(std::vector<double>{0}, std::vector<double>{kNan}), kInf);
}

TEST(ReferenceError, ToleranceFollowsTheType) {
  EXPECT_EQ(default_tolerance(Dtype::i32), 0);
  EXPECT_EQ(default_tolerance(Dtype::boolean), 0);
  EXPECT_LT(default_tolerance(Dtype::f32), default_tolerance(Dtype::f16));
  EXPECT_LT(default_tolerance(Dtype::f16), default_tolerance(Dtype::bf16));
}

// y = (x w) v, and n the largest of each row, x in `in`, x w in `between`, y in f32.
double tolerance_of(const char* in, const char* between, const char* output) {
  const std::string text = std::string("ccks: 1\nprogram: p\ndims: {d: 4}\ntensors:\n  x: {shape: [d, d], kind: input, dtype: ") + in +
                           "}\n  w: {shape: [d, d], kind: weight, dtype: " + in + "}\n  v: {shape: [d, d], kind: weight, dtype: " + between +
                           "}\n  y: {shape: [d, d], kind: output, dtype: f32}\n  n: {shape: [d], kind: output, dtype: i32}\nops:\n  - {op: matmul, a: x, b: w, out: h, dtype: " + between +
                           "}\n  - {op: matmul, a: h, b: v, out: y}\n  - {op: argmax, x: y, out: n}\n";
  const ParseResult parsed = parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << format_diagnostics(parsed);
  return output_tolerance(parsed.program, *parsed.program.find_tensor(output));
}

TEST(ReferenceError, AnOutputIsAsPreciseAsWhatItIsMadeOf) {
  EXPECT_EQ(tolerance_of("f32", "f32", "y"), 1e-4);
  EXPECT_EQ(tolerance_of("f32", "bf16", "y"), 0x1p-5);
  EXPECT_EQ(tolerance_of("f32", "f16", "y"), 0x1p-8);
  EXPECT_EQ(tolerance_of("bf16", "f32", "y"), 1e-4) << "what is given is the same for everybody";
  EXPECT_EQ(tolerance_of("f32", "bf16", "n"), 0) << "integers are exact";
}

}  // namespace
}  // namespace ccks::spec
