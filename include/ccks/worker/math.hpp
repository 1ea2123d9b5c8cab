// Scalar functions of the element expressions. On the host they are written without branches, so that a loop over them
// becomes vector code; relative error stays below 1e-6 (tests/unit/worker/math_test.cpp holds it). On a GPU the
// compiler's own functions are used.
#pragma once

#include "ccks/worker/isa.hpp"
#include "ccks/worker/ptx.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

#if defined(__CUDACC__)
CCKS_INLINE float f_sqrt(float x) { return ::sqrtf(x); }
CCKS_INLINE float f_floor(float x) { return ::floorf(x); }
CCKS_INLINE float f_ceil(float x) { return ::ceilf(x); }
CCKS_INLINE float f_round(float x) { return ::rintf(x); }
CCKS_INLINE double d_round(double x) { return ::rint(x); }
CCKS_INLINE double d_exp(double x) { return ::exp(x); }
CCKS_INLINE double d_log(double x) { return ::log(x); }
CCKS_INLINE float f_fmod(float a, float b) { return ::fmodf(a, b); }
CCKS_INLINE float f_pow(float a, float b) { return ::powf(a, b); }
CCKS_INLINE float f_abs(float x) { return ::fabsf(x); }
// NaN then has other bits than by integers.
inline constexpr bool kRoundsByHardware = ptx::kRoundsTo16;
CCKS_INLINE u16 hardware_bf16(float v) { return ptx::cvt_rn_bf16(v); }
CCKS_INLINE u16 hardware_f16(float v) { return ptx::cvt_rn_f16(v); }
#else
inline constexpr bool kRoundsByHardware = false;
CCKS_INLINE u16 hardware_bf16(float) { return 0; }
CCKS_INLINE u16 hardware_f16(float) { return 0; }
CCKS_INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
CCKS_INLINE float f_floor(float x) { return __builtin_floorf(x); }
CCKS_INLINE float f_ceil(float x) { return __builtin_ceilf(x); }
CCKS_INLINE float f_round(float x) { return __builtin_rintf(x); }
CCKS_INLINE double d_round(double x) { return __builtin_rint(x); }
CCKS_INLINE double d_exp(double x) { return __builtin_exp(x); }
CCKS_INLINE double d_log(double x) { return __builtin_log(x); }
CCKS_INLINE float f_fmod(float a, float b) { return __builtin_fmodf(a, b); }
CCKS_INLINE float f_pow(float a, float b) { return __builtin_powf(a, b); }
CCKS_INLINE float f_abs(float x) { return bit_cast<float>(bit_cast<u32>(x) & 0x7fffffffu); }
#endif

CCKS_INLINE float f_infinity() { return bit_cast<float>(0x7f800000u); }
CCKS_INLINE float f_nan() { return bit_cast<float>(0x7fc00000u); }

// exp: 2^n * e^r with |r| <= ln(2) / 2; Taylor to r^7 leaves 6e-9. Adding 1.5 * 2^23 rounds to an integer that then
// stands in the low bits. The scale is applied in halves, so that results may be subnormal or infinite.
CCKS_INLINE float exp_poly(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r =
      (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts; the first has 9 zero bits at its end
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const i32 exponent = bit_cast<i32>(shifted) - bit_cast<i32>(kRound);
  const i32 half = exponent >> 1;
  return p * bit_cast<float>((half + 127) << 23) * bit_cast<float>((exponent - half + 127) << 23);
}

// log: m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: terms to s^9.
CCKS_INLINE float log_poly(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const i32 bits = bit_cast<i32>(scaled) - 0x3f3504f3;
  const float e = static_cast<float>((bits >> 23) - (tiny ? 23 : 0));
  const float m = bit_cast<float>((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const float s = m / (2.0f + m), z = s * s;
  float p = 2.0f / 9;
  p = p * z + 2.0f / 7;
  p = p * z + 2.0f / 5;
  p = p * z + 2.0f / 3;
  p = p * z + 2.0f;
  float y = e * 0.693145752f + (p * s + e * 1.42860677e-6f);
  y = x > 3.40282347e38f ? x : y;
  y = x == 0.0f ? -f_infinity() : y;
  return x < 0.0f || x != x ? f_nan() : y;
}

// tanh: the continued fraction x / (1 + x^2 / (3 + ...)) to depth 5 near 0 (6e-10 at 0.625), 1 - 2 / (e^2x + 1) beyond.
CCKS_INLINE float tanh_poly(float x) {
  const float a = f_abs(x), z = x * x;
  const float near = x * (945.0f + z * (105.0f + z)) / (945.0f + z * (420.0f + z * 15.0f));
  const float far = 1.0f - 2.0f / (exp_poly(2.0f * a) + 1.0f);
  const float signed_far = x < 0.0f ? -far : far;
  return a < 0.625f ? near : signed_far;
}

// erfc(a) for a >= 0: e^(-a^2) t P(t), t = 1 / (1 + 0.4 a). P: Chebyshev fit of degree 8 on a in [0, 10], 3.8e-8.
CCKS_INLINE float erfc_tail(float t) {
  float p = 0.0385085090009f;
  p = p * t - 0.127446434881f;
  p = p * t + 0.0584508879864f;
  p = p * t + 0.115858613432f;
  p = p * t + 0.0614656868668f;
  p = p * t + 0.200742548398f;
  p = p * t + 0.200125254967f;
  p = p * t + 0.226673265194f;
  p = p * t + 0.225621706936f;
  return t * p;
}
CCKS_INLINE float erfc_positive(float a) { return exp_poly(-a * a) * erfc_tail(1.0f / (1.0f + 0.4f * a)); }

// erf: Taylor to x^21 up to 1 (1e-8 there), 1 - erfc beyond.
CCKS_INLINE float erf_poly(float x) {
  const float a = f_abs(x), z = a > 1.0f ? 1.0f : x * x;
  float p = 1.0f / 76204800;
  p = p * z - 1.0f / 6894720;
  p = p * z + 1.0f / 685440;
  p = p * z - 1.0f / 75600;
  p = p * z + 1.0f / 9360;
  p = p * z - 1.0f / 1320;
  p = p * z + 1.0f / 216;
  p = p * z - 1.0f / 42;
  p = p * z + 1.0f / 10;
  p = p * z - 1.0f / 3;
  p = p * z + 1.0f;
  const float far = 1.0f - erfc_positive(a);
  const float signed_far = x < 0.0f ? -far : far;
  return a > 1.0f || x != x ? signed_far : x * 1.12837917f * p;
}

// log(1 + u) for u in [0, 1]: 2 atanh(u / (2 + u)), terms to s^15.
CCKS_INLINE float log1p_unit(float u) {
  const float s = u / (2.0f + u), z = s * s;
  float p = 2.0f / 15;
  p = p * z + 2.0f / 13;
  p = p * z + 2.0f / 11;
  p = p * z + 2.0f / 9;
  p = p * z + 2.0f / 7;
  p = p * z + 2.0f / 5;
  p = p * z + 2.0f / 3;
  p = p * z + 2.0f;
  return p * s;
}

/// sin and cos of an angle given in f64, right for |x| up to 1e9: reduced in f64 by quarter turns, Taylor on [-pi/4,
/// pi/4].
CCKS_INLINE void sincos_reduced(double x, float& sine, float& cosine) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 0.63661977236758134308 + kRound;
  const double n = shifted - kRound;
  const float r = static_cast<float>((x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11);
  const i32 quarter = static_cast<i32>(bit_cast<i64>(shifted));
  const float z = r * r;
  const float s = r + r * z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880))));
  const float c = 1.0f + z * (-0.5f + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320 - z * (1.0f / 3628800)))));
  const float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
  sine = quarter & 2 ? -a : a;
  cosine = (quarter + 1) & 2 ? -b : b;
}

#if defined(__CUDACC__)
CCKS_INLINE float f_exp(float x) { return ::expf(x); }
CCKS_INLINE float f_log(float x) { return ::logf(x); }
CCKS_INLINE float f_tanh(float x) { return ::tanhf(x); }
CCKS_INLINE float f_erf(float x) { return ::erff(x); }
CCKS_INLINE float f_erfc(float x) { return ::erfcf(x); }
CCKS_INLINE float f_sin(float x) { return ::sinf(x); }
CCKS_INLINE float f_cos(float x) { return ::cosf(x); }
CCKS_INLINE float f_rsqrt(float x) { return ::rsqrtf(x); }
CCKS_INLINE float f_larger(float a, float b) { return ::fmaxf(a, b); }
#else
CCKS_INLINE float f_exp(float x) { return exp_poly(x); }
CCKS_INLINE float f_log(float x) { return log_poly(x); }
CCKS_INLINE float f_tanh(float x) { return tanh_poly(x); }
CCKS_INLINE float f_erf(float x) { return erf_poly(x); }
CCKS_INLINE float f_erfc(float x) {
  const float tail = erfc_positive(f_abs(x));
  return x < 0.0f ? 2.0f - tail : tail;
}
CCKS_INLINE float f_sin(float x) {
  float s, c;
  sincos_reduced(static_cast<double>(x), s, c);
  return s;
}
CCKS_INLINE float f_cos(float x) {
  float s, c;
  sincos_reduced(static_cast<double>(x), s, c);
  return c;
}
CCKS_INLINE float f_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
CCKS_INLINE float f_larger(float a, float b) { return a != a || a < b ? b : a; }  // of NaN and a number the number
#endif

/// gelu(x) is x / (1 + 2^this), for results of so many binary digits, 8 or 11: an odd polynomial for the logarithm of the odds, a least squares fit, reweighted until errors are even. The result is good
/// to 1e-3 of itself down to x = -5 with 8, to 1e-4 with 11, and to 2e-6 below.
template <u32 kDigits>
CCKS_INLINE float gelu_exponent(float x) {
  const float z = x * x;
  float p;
  if constexpr (kDigits <= 8) {
    p = -1.32667575e-7f;
    p = p * z - 6.41643304e-6f;
    p = p * z + 1.31737818e-3f;
    p = p * z - 0.108796658f;
    p = p * z - 2.29849694f;
  } else {
    p = -1.84227014e-9f;
    p = p * z + 1.75519596e-7f;
    p = p * z - 6.51371519e-6f;
    p = p * z + 1.04127552e-4f;
    p = p * z + 3.93824537e-4f;
    p = p * z - 0.105524398f;
    p = p * z - 2.30175824f;
  }
  return x * p;
}

#if defined(__CUDACC__)
CCKS_INLINE float f_sigmoid(float x) { return ptx::rcp(1.0f + ptx::ex2(x * -1.44269504f)); }
CCKS_INLINE float f_silu(float x) { return x * f_sigmoid(x); }
/// By erfc_positive without its divisions and branches, and with as few instructions as it takes: a tile of a product has 128 of them a lane.
CCKS_INLINE float f_gelu(float x) {
  const float half_power = ptx::ex2(x * x * -0.72134752f - 1.0f);  // e^(-x^2 / 2) / 2
  const float below = half_power * erfc_tail(ptx::rcp(::fabsf(x) * 0.28284271f + 1.0f));  // of -|x|
  return x * (x < 0.0f ? below : 1.0f - below);
}
template <u32 kDigits>
CCKS_INLINE float f_gelu_brief(float x) {
  return x * ptx::rcp(1.0f + ptx::ex2(gelu_exponent<kDigits>(x)));
}
#else
CCKS_INLINE float f_sigmoid(float x) { return 1.0f / (1.0f + f_exp(-x)); }
CCKS_INLINE float f_silu(float x) { return x / (1.0f + f_exp(-x)); }
CCKS_INLINE float f_gelu(float x) { return 0.5f * x * f_erfc(x * -0.70710678f); }
template <u32 kDigits>
CCKS_INLINE float f_gelu_brief(float x) {
  return f_gelu(x);
}
#endif
// 1 + tanh(y) = 2 sigmoid(2 y), which keeps its precision where tanh is near -1.
CCKS_INLINE float f_gelu_tanh(float x) { return x * f_sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }
// NaN wins, so that a value nobody computed stays visible.
CCKS_INLINE float f_min(float a, float b) { return a != a || a < b ? a : b; }
CCKS_INLINE float f_max(float a, float b) { return a != a || a > b ? a : b; }
CCKS_INLINE float f_sign(float x) {
  const float s = x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f);
  return x != x ? x : s;
}
CCKS_INLINE float f_softplus(float x) { return f_max(x, 0.0f) + log1p_unit(f_exp(-f_abs(x))); }
/// Remainder with the divisor's sign.
CCKS_INLINE float f_mod(float a, float b) {
  const float rest = f_fmod(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}

// Integers never trap: x / 0 and x % 0 are 0, everything wraps.
CCKS_INLINE i64 i_add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
CCKS_INLINE i64 i_sub(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }
CCKS_INLINE i64 i_mul(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }
CCKS_INLINE i64 i_div(i64 a, i64 b) {
  if (b == 0) return 0;
  if (b == -1) return i_sub(0, a);
  const i64 q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
CCKS_INLINE i64 i_mod(i64 a, i64 b) {
  if (b == 0 || b == -1) return 0;
  const i64 r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/// Truncates; saturates; NaN is 0.
CCKS_INLINE i64 i_from_f(float x) {
  if (x != x) return 0;
  if (x >= 9223372036854775808.0f) return 0x7fffffffffffffffll;
  if (x < -9223372036854775808.0f) return -0x7fffffffffffffffll - 1;
  return static_cast<i64>(x);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
