// conv2d as a matmul per image: weight[oc, c * kh * kw] times the windows of x, which are gathered as they are packed.
#pragma once

#include "ccks/worker/ops_matmul.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

struct ConvShape {
  i32 stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  i32 kernel_h, kernel_w;
  i32 first_row, first_column, columns;  // of the tile's pixels in the output
  i32 height, width;                     // of x
};

/// Row i is output channel i of the tile, column j pixel j of the tile, depth (channel, kernel row, kernel column).
template <class X, class Weight, class Types, class Expr, class Out>
struct ConvProblem {
  static constexpr u32 kThinRows = 0;
  ConvShape s;
  View<X> x;            // at the image
  View<Weight> weight;  // at the tile's first output channel
  Arguments<Types> args;
  const Expr& expr;
  View<Out> out;
  i32 image, channel;

  struct Tap {
    i32 c, h, w;
  };
  CCKS_INLINE Tap tap(u32 k) const {
    const u32 kw = static_cast<u32>(s.kernel_w), kh = static_cast<u32>(s.kernel_h);
    return {static_cast<i32>(k / kw / kh), static_cast<i32>(k / kw % kh), static_cast<i32>(k % kw)};
  }
  CCKS_INLINE float a(u32 i, u32 k) const {
    const Tap t = tap(k);
    return load_float(weight.type, weight.at(static_cast<i32>(i), t.c, t.h, t.w), 0);
  }
  CCKS_INLINE i32 input_row(const Tap& t, i32 oh) const { return oh * s.stride_h + t.h * s.dilation_h - s.pad_h; }
  CCKS_INLINE i32 input_column(const Tap& t, i32 ow) const { return ow * s.stride_w + t.w * s.dilation_w - s.pad_w; }
  CCKS_INLINE float b(u32 k, u32 j) const {
    const Tap t = tap(k);
    const i32 h = input_row(t, s.first_row + static_cast<i32>(j) / s.columns);
    const i32 w = input_column(t, s.first_column + static_cast<i32>(j) % s.columns);
    if (h < 0 || h >= s.height || w < 0 || w >= s.width) return 0.0f;
    return load_float(x.type, x.at(0, t.c, h, w), 0);
  }
  CCKS_INLINE bool b_is_transposed() const { return false; }
  CCKS_INLINE void column_b(u32, u32, u32, float*) const {}

  CCKS_INLINE void run_a(u32 i, u32 k, u32 n, float* to) const {
    while (n > 0) {  // a run within one kernel row at a time
      const Tap t = tap(k);
      const u32 here = least(n, static_cast<u32>(s.kernel_w - t.w));
      load_run(weight.type, weight.at(static_cast<i32>(i), t.c, t.h, t.w), weight.stride[3], here, to);
      k += here;
      to += here;
      n -= here;
    }
  }

  /// Output columns [first, first + n) of one output row: zero, inside, zero.
  CCKS_INLINE void run_row(const Tap& t, i32 oh, i32 first, u32 n, float* to) const {
    const i32 h = input_row(t, oh), count = static_cast<i32>(n);
    i32 begin = 0, end = 0;
    if (h >= 0 && h < s.height) {
      const i32 w0 = input_column(t, first);
      begin = w0 >= 0 ? 0 : least(count, (-w0 + s.stride_w - 1) / s.stride_w);
      end = w0 >= s.width ? 0 : least(count, (s.width - 1 - w0) / s.stride_w + 1);
      end = most(begin, end);
    }
    for (i32 i = 0; i < begin; ++i) to[i] = 0;
    if (end > begin)
      load_run(x.type, x.at(0, t.c, h, input_column(t, first + begin)), s.stride_w * x.stride[3],
               static_cast<u32>(end - begin), to + begin);
    for (i32 i = end; i < count; ++i) to[i] = 0;
  }
  CCKS_INLINE void run_b(u32 k, u32 j, u32 n, float* to) const {
    const Tap t = tap(k);
    while (n > 0) {
      const i32 column = static_cast<i32>(j) % s.columns;
      const u32 here = least(n, static_cast<u32>(s.columns - column));
      run_row(t, s.first_row + static_cast<i32>(j) / s.columns, s.first_column + column, here, to);
      j += here;
      to += here;
      n -= here;
    }
  }

  CCKS_INLINE void finish_four(u32 i, u32 j, u32 n, const float* acc) const {
    for (u32 q = 0; q < n; ++q) finish<1>(i, j + q, 1, acc + q);
  }
  template <u32 W>
  CCKS_INLINE void finish(u32 i, u32 j, u32 n, const float* acc) const {
    while (n > 0) {  // a row of pixels at a time
      const i32 column = static_cast<i32>(j) % s.columns;
      const u32 here = least(n, static_cast<u32>(s.columns - column));
      const Place p{{image, channel + static_cast<i32>(i), s.first_row + static_cast<i32>(j) / s.columns,
                     s.first_column + column},
                    here};
      evaluate<W>(Arguments<Types>{args.call, args.types, acc, args.first}, expr, p, out);
      j += here;
      acc += here;
      n -= here;
    }
  }
};

template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_conv2d(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const auto x = view_of<0>(call, types);
  const auto weight = view_of<1>(call, types);
  const u32 out_index = call.op.input_count;
  const auto out = make_view(call, out_index, types.last(out_index));
  const Box box = tile_box(call.op, tile, out.dim);
  if (box.size[0] * box.size[1] * box.size[2] * box.size[3] == 0) return FaultCode::none;
  const i32* d = call.op.dims;
  const ConvShape shape{d[0],          d[1],      d[2],      d[3],        d[4],     d[5],    weight.dim[2],
                        weight.dim[3], box.lo[2], box.lo[3], box.size[3], x.dim[2], x.dim[3]};
  const u32 depth = static_cast<u32>(weight.dim[1] * weight.dim[2] * weight.dim[3]);
  for (i32 image = box.lo[0]; image < box.lo[0] + box.size[0]; ++image) {
    auto at_image = x;
    at_image.data = x.at(image, 0, 0, 0);
    auto at_channel = weight;
    at_channel.data = weight.at(box.lo[1], 0, 0, 0);
    const ConvProblem<decltype(x.type), decltype(weight.type), Types, Expr, decltype(out.type)> problem{
        shape, at_image, at_channel, {call, types, nullptr, static_cast<u32>(d[wire::kEpilogueDim])},
        expr,  out,      image,      box.lo[1]};
    if (image != box.lo[0]) lanes.sync();  // the image before is done with scratch
    gemm(lanes, scratch_of(lanes), problem, static_cast<u32>(box.size[1]), static_cast<u32>(box.size[2] * box.size[3]), depth);
  }
  return FaultCode::none;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
