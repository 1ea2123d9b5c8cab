// Conversions over all halves and many floats, and the scalar functions against libm in f64.
#include "ccks/worker/element.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

template <u16 (*kRound)(float), float (*kWiden)(u16)>
void round_trip(u16 infinity) {
  for (u32 h = 0; h < 0x10000; ++h) {
    const float v = kWiden(static_cast<u16>(h));
    if ((h & 0x7fff) > infinity) {
      EXPECT_TRUE(std::isnan(v) && std::isnan(kWiden(kRound(v))));
      continue;
    }
    ASSERT_EQ(kRound(v), h);
    if ((h & 0x7fff) >= infinity - 1u) continue;
    // Half way to the next one goes to the even one; a hair beyond goes on, a hair before goes back.
    const double next = kWiden(static_cast<u16>(h + 1)), middle = (static_cast<double>(v) + next) / 2;
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(kRound(tie), h % 2 == 0 ? h : h + 1) << h;
    ASSERT_EQ(kRound(std::nextafter(tie, static_cast<float>(next))), h + 1) << h;
    ASSERT_EQ(kRound(std::nextafter(tie, v)), h) << h;
  }
}

TEST(Convert, Bf16RoundsToNearestEven) { round_trip<f32_to_bf16, bf16_to_f32>(0x7f80); }
TEST(Convert, F16RoundsToNearestEven) { round_trip<f32_to_f16, f16_to_f32>(0x7c00); }

TEST(Convert, F16MatchesItsDefinitionAndOverflows) {
  for (u32 h = 0; h < 0x10000; ++h) {
    const double want = half_value(static_cast<u16>(h)), got = f16_to_f32(static_cast<u16>(h));
    ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << h;
  }
  EXPECT_EQ(f32_to_f16(65519.9f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_f16(1e-9f), 0);
}

TEST(Convert, IntegersRoundSaturateAndNanIsZero) {
  EXPECT_EQ(from_float<Dtype::i32>(2.5f), 2);
  EXPECT_EQ(from_float<Dtype::i32>(-3.5f), -4);
  EXPECT_EQ(from_float<Dtype::i32>(3e9f), 2147483647);
  EXPECT_EQ(from_float<Dtype::i32>(-3e9f), -2147483647 - 1);
  EXPECT_EQ(from_float<Dtype::i64>(NAN), 0);
  EXPECT_EQ(from_float<Dtype::i64>(1e30f), 0x7fffffffffffffffll);
  EXPECT_EQ(from_float<Dtype::boolean>(-0.0f), 0);
  EXPECT_EQ(from_float<Dtype::boolean>(1e-40f), 1);
}

/// Largest relative error over [lo, hi], evenly and by powers of ten towards 0.
void check(const char* name, float (*got)(float), double (*want)(double), float lo, float hi, double tolerance) {
  double worst = 0;
  float at = 0;
  const auto look = [&](float x) {
    if (!(x >= lo && x <= hi)) return;
    const double w = want(static_cast<double>(x)), g = got(x);
    if (!std::isfinite(w) || std::abs(w) < 1e-37) return;
    const double error = std::abs(g - w) / std::abs(w);
    if (!(error <= worst)) worst = error, at = x;
  };
  for (int i = 0; i <= 200000; ++i) look(lo + (hi - lo) * static_cast<float>(i) / 200000.0f);
  for (float x = 1e-30f; x < 100; x *= 1.01f) look(x), look(-x);
  EXPECT_LE(worst, tolerance) << name << " at " << at;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Math, RelativeErrors) {
  check("exp", exp_poly, std::exp, -87, 88.7f, 2e-7);
  check("log", log_poly, std::log, 1e-37f, 1e30f, 3e-7);
  check("tanh", tanh_poly, std::tanh, -20, 20, 4e-7);
  check("erf", erf_poly, std::erf, -6, 6, 4e-7);
  check("sigmoid", f_sigmoid, sigmoid, -80, 80, 4e-7);
  check(
      "silu", f_silu, [](double x) { return x * sigmoid(x); }, -80, 80, 5e-7);
  check(
      "gelu", f_gelu, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, -3, 10, 2e-6);
  check(
      "gelu_tanh", f_gelu_tanh,
      [](double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }, -3, 10, 2e-6);
  check(
      "softplus", f_softplus, [](double x) { return std::log1p(std::exp(x)); }, -80, 80, 4e-7);
  check(
      "rsqrt", f_rsqrt, [](double x) { return 1 / std::sqrt(x); }, 1e-30f, 1e30f, 2e-7);
}

// Of results of 16 bits. Below -5 it is the error that counts, not its share.
template <u32 kDigits>
double worst_brief_gelu(double lo, double hi, bool share) {
  double worst = 0;
  for (double x = lo; x <= hi; x += 1.0 / 1024) {
    const double want = 0.5 * x * std::erfc(-x / std::sqrt(2.0)), got = x / (1 + std::exp2(gelu_exponent<kDigits>(static_cast<float>(x))));
    worst = std::max(worst, std::abs(got - want) / (share ? std::max(std::abs(want), 1e-300) : 1));
  }
  return worst;
}
TEST(Math, GeluOfFewDigits) {
  EXPECT_LT(worst_brief_gelu<8>(-5, 12, true), 1.1e-3);
  EXPECT_LT(worst_brief_gelu<11>(-5, 12, true), 1.1e-4);
  EXPECT_LT(worst_brief_gelu<8>(-60, -5, false), 2e-6);
  EXPECT_LT(worst_brief_gelu<11>(-60, -5, false), 2e-6);
  for (const float huge : {1e4f, 1e30f, f_infinity()}) {
    EXPECT_EQ(std::exp2(gelu_exponent<8>(huge)), 0) << huge;
    EXPECT_EQ(std::exp2(gelu_exponent<11>(-huge)), static_cast<double>(f_infinity())) << huge;
  }
}

TEST(Math, SinAndCosOfLargeAngles) {
  std::mt19937 rng(3);
  for (const double range : {1.0, 100.0, 1e5, 1e9}) {
    std::uniform_real_distribution<double> draw(-range, range);
    for (int i = 0; i < 20000; ++i) {
      const double x = draw(rng);
      float s, c;
      sincos_reduced(x, s, c);
      const double slack = range * 1e-16;  // the last bits of the angle itself
      ASSERT_NEAR(s, std::sin(x), 1.2e-7 + slack) << x;
      ASSERT_NEAR(c, std::cos(x), 1.2e-7 + slack) << x;
    }
  }
}

TEST(Math, SpecialValues) {
  EXPECT_EQ(exp_poly(-INFINITY), 0);
  EXPECT_EQ(exp_poly(INFINITY), INFINITY);
  EXPECT_EQ(exp_poly(0), 1);
  EXPECT_EQ(log_poly(0), -INFINITY);
  EXPECT_EQ(log_poly(INFINITY), INFINITY);
  EXPECT_EQ(log_poly(1), 0);
  EXPECT_NEAR(log_poly(1e-40f), std::log(1e-40f), 1e-4);
  EXPECT_EQ(tanh_poly(INFINITY), 1);
  EXPECT_EQ(tanh_poly(-INFINITY), -1);
  EXPECT_EQ(erf_poly(-INFINITY), -1);
  EXPECT_EQ(f_sigmoid(-INFINITY), 0);
  EXPECT_EQ(f_softplus(INFINITY), INFINITY);
  for (float (*f)(float) :
       {exp_poly, log_poly, tanh_poly, erf_poly, f_sin, f_cos, f_sigmoid, f_silu, f_gelu, f_gelu_tanh, f_softplus})
    EXPECT_TRUE(std::isnan(f(NAN)));
  EXPECT_TRUE(std::isnan(log_poly(-1)));
  EXPECT_TRUE(std::isnan(f_min(NAN, 1)) && std::isnan(f_min(1, NAN)) && std::isnan(f_max(NAN, 1)) &&
              std::isnan(f_max(1, NAN)));
}

}  // namespace
}  // namespace ccks::worker::test
