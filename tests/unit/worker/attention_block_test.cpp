// attention of many rows by warps and by groups of them, with and without limits of each row's own: rows of sequences of different lengths keep to themselves, whatever
// stands in the others.
#include <algorithm>
#include <numeric>

#include "ccks/ragged.hpp"
#include "ccks/worker/ops_attention.hpp"
#include "ccks/worker/platform_host.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Shape {
  int kv_heads, group, head_dim, n, context;
  int batch = 1;
  bool causal = false;
  Dtype dtype = Dtype::bf16;
  int tile_rows = 1 << 20;
  int tile_heads = 1;  // of keys
};

enum class Where { host, portable, warps, copying, groups, few_stages, copied };  // the last: groups, by the worker's copy of the op

/// GroupWarps with as little scratch as there may be.
class NarrowGroupWarps : public GroupWarps {
 public:
  using GroupWarps::GroupWarps;
  u32 scratch_bytes() const { return kMinScratchBytes; }
};

template <class Types, class Lanes>
FaultCode run_all(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op) {
  for (u32 tile = 0; tile < op.tile_count; ++tile) {
    const Call call(frame, op);
    if constexpr (Types::kCount == 5 && std::is_same_v<Lanes, GroupWarps>) {
      const bool of_one_walk = op.operands != 0 && (op.flags & wire::kOpGroups) != 0 && op.tile[2] <= 128 && op.grid[1] == 1;
      const bool taken = near_attention<Lanes, Types>(lanes, op, tile);
      EXPECT_EQ(taken, of_one_walk);
      lanes.sync();
      if (taken) continue;
    }
    const FaultCode fault = run_attention(lanes, call, tile, types_of<Types>(call));
    if (fault != FaultCode::none) return fault;
    lanes.sync();
  }
  return FaultCode::none;
}

/// One lane that is not the host's only one, so that it takes the body for any number of them.
class OneOfMany : public HostLanes {
 public:
  using HostLanes::HostLanes;
  static constexpr bool kSingleLane = false;
};

/// The first group has rows: it has multiplied, and has waited for all of it.
template <class Types, class Lanes>
FaultCode run_in_groups(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op) {
  const FaultCode fault = run_all<Types>(lanes, frame, op);
  EXPECT_TRUE(lanes.groups() > 0 || lanes.lane() >= 4 * GroupWarps::kWarp) << "the body for groups of warps has not taken it";
  EXPECT_TRUE(lanes.awaited_all());
  return fault;
}

template <class Types>
FaultCode run_on(Where where, const wire::RunFrame& frame, const wire::OpParams& op) {
  static WarpBlock block;
  alignas(128) static u8 scratch[512 * 1024];
  if (where == Where::host) {
    HostLanes lanes(scratch, sizeof scratch);
    return run_all<Types>(lanes, frame, op);
  }
  if (where == Where::portable) {
    OneOfMany lanes(scratch, sizeof scratch);
    return run_all<Types>(lanes, frame, op);
  }
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    if (where == Where::warps) {
      EmulatedWarps lanes(block, lane);
      faults[lane] = run_all<Types>(lanes, frame, op);
    } else if (where == Where::copying) {
      RoomyWarps lanes(block, lane);
      faults[lane] = run_all<Types>(lanes, frame, op);
      const bool copied = lanes.copies() > 0;
      EXPECT_TRUE(copied || op.grid[0] == 0) << "the body for many rows has not taken it";
    } else if (where == Where::groups || where == Where::copied) {
      GroupWarps lanes(block, lane);
      faults[lane] = run_in_groups<Types>(lanes, frame, op);
    } else {
      NarrowGroupWarps lanes(block, lane);
      faults[lane] = run_in_groups<Types>(lanes, frame, op);
    }
  });
  for (const FaultCode fault : faults) EXPECT_EQ(fault, faults[0]);
  return faults[0];
}

template <Dtype D>
FaultCode run_typed(Where where, bool limited, const wire::RunFrame& frame, const wire::OpParams& op) {
  return limited ? run_on<FixedTypes<D, D, D, Dtype::i32, D>>(where, frame, op) : run_on<FixedTypes<D, D, D, D>>(where, frame, op);
}

struct Case {
  Case(const Shape& of, std::uint32_t seed, const std::vector<std::int32_t>* reach_of_rows = nullptr) : s(of), limited(reach_of_rows != nullptr), b(seed) {
    const int heads = s.kv_heads * s.group, columns = heads * s.head_dim;
    q = b.tensor(s.dtype, {1, s.batch, s.n, columns}, true);
    k = b.tensor(s.dtype, {1, s.batch, s.context, s.kv_heads * s.head_dim}, true);
    v = b.tensor(s.dtype, k.dim, true);
    reach = b.tensor(Dtype::i32, {1, 1, s.n, 2}, true);
    out = b.tensor(s.dtype, q.dim, true);
    for (const Tensor& t : {q, k, v}) b.fill(t, -2, 2);
    if (limited) {
      for (int i = 0; i < s.n; ++i)
        for (int e = 0; e < 2; ++e) b.set(reach, {0, 0, i, e}, (*reach_of_rows)[static_cast<std::size_t>(2 * i + e)]);
      b.operands = {q, k, v, reach, out};
    } else {
      b.operands = {q, k, v, out};
    }
    b.op.dims[0] = heads, b.op.dims[1] = s.kv_heads, b.op.dims[2] = s.causal;
    b.op.scalars[0] = 0.2f;
    b.tiles({1, s.batch, s.n, columns}, {1, 1, std::min(s.n, s.tile_rows), s.tile_heads * s.group * s.head_dim});
  }

  std::pair<int, int> positions(int row) {
    int first = 0, end = s.context;
    if (s.causal) end = std::clamp(row + 1 + s.context - s.n, 0, s.context);
    if (limited) {
      first = std::max(0, static_cast<int>(b.get(reach, {0, 0, row, 0})));
      end = std::min(end, static_cast<int>(b.get(reach, {0, 0, row, 1})));
    }
    return {first, std::max(first, end)};
  }

  /// Every eleventh column or so of every row; columns of a row and head share its weights.
  void find_wanted() {
    for (int batch = 0; batch < s.batch; ++batch)
      for (int row = 0; row < s.n; ++row)
        for (int head = 0; head < s.kv_heads * s.group; ++head) {
          const int kv = head / s.group * s.head_dim, first_dim = head * s.head_dim;
          const auto [first, end] = positions(row);
          std::vector<double> weights;
          for (int j = first; j < end; ++j) {
            double score = 0;
            for (int d = 0; d < s.head_dim; ++d) score += b.get(q, {0, batch, row, first_dim + d}) * b.get(k, {0, batch, j, kv + d});
            weights.push_back(std::exp(score * static_cast<double>(b.op.scalars[0])));
          }
          const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
          for (int d = (batch + row) % 5; d < s.head_dim; d += 11) {
            double value = 0;
            for (int j = first; j < end; ++j) value += weights[static_cast<std::size_t>(j - first)] * b.get(v, {0, batch, j, kv + d});
            wanted.push_back({{0, batch, row, first_dim + d}, sum == 0 ? 0 : value / sum});
          }
        }
  }

  void run(std::initializer_list<Where> places) {
    find_wanted();
    for (const Where where : places) {
      b.fill(out, 90, 99);
      const auto run_tiles = [&](const auto& frame, const auto& from) {
        const Copied copy(frame, from);
        const wire::OpParams& op = where == Where::copied ? copy.op : from;
        if (s.dtype == Dtype::bf16) return run_typed<Dtype::bf16>(where, limited, frame, op);
        return s.dtype == Dtype::f16 ? run_typed<Dtype::f16>(where, limited, frame, op) : run_typed<Dtype::f32>(where, limited, frame, op);
      };
      ASSERT_EQ(b.run_by(OpCode::attention, limited ? 4 : 3, run_tiles), FaultCode::none);
      const double tolerance = s.dtype == Dtype::bf16 ? 0.02 : s.dtype == Dtype::f16 ? 0.004 : 1e-5;
      for (const auto& [c, expected] : wanted) {
        const double got = b.get(out, c);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(got)) << "row " << c[2] << ", column " << c[3];
          continue;
        }
        ASSERT_NEAR(got, expected, tolerance) << "on " << static_cast<int>(where) << ", n " << s.n << ", context " << s.context << ", row " << c[2] << " of ["
                                              << positions(c[2]).first << ", " << positions(c[2]).second << "), column " << c[3];
      }
    }
  }

  Shape s;
  bool limited;
  Bench b;
  Tensor q, k, v, reach, out;
  std::vector<std::pair<Index, double>> wanted;
};

constexpr std::initializer_list<Where> kEverywhere = {Where::host, Where::portable, Where::warps, Where::copying, Where::groups, Where::few_stages, Where::copied};

TEST(AttentionBlock, ManyRowsWithoutLimits) {
  constexpr Shape kShapes[] = {
      {1, 1, 64, 65, 65},  {1, 1, 64, 50, 140, 1, true}, {1, 1, 128, 40, 33}, {1, 3, 64, 30, 34, 2, true},
      {1, 1, 64, 150, 20}, {1, 1, 64, 70, 30, 1, false, Dtype::f16}, {1, 1, 128, 40, 67, 1, true, Dtype::f16, 36},
  };
  std::uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    Case(shape, seed++).run(kEverywhere);
    if (HasFailure()) return;
  }
}

std::vector<std::int32_t> reach_of(const std::vector<std::int32_t>& lengths, std::int64_t pad, int n) {
  std::vector<std::int32_t> reach(static_cast<std::size_t>(2 * n));
  RaggedRows{lengths, pad, 1}.write_reach(reach);
  return reach;
}

TEST(AttentionBlock, SequencesOfAnyLengthKeepToThemselves) {
  struct Batch {
    std::vector<std::int32_t> lengths;
    std::int64_t pad;
    Shape shape;
  };
  const Batch kBatches[] = {
      {{5, 1, 0, 30, 17, 3}, 1, {1, 1, 64, 0, 0}},
      {{43, 20, 70, 1, 9}, 1, {1, 1, 64, 0, 0}},
      {{20, 0, 68, 9}, 16, {1, 2, 64, 0, 0}},
      {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40}, 1, {1, 1, 128, 0, 0}},
      {{31, 64, 7}, 8, {1, 1, 64, 0, 0, 1, true}},
      {{31, 50}, 1, {1, 1, 128, 0, 0, 1, true, Dtype::f16}},
      {{40, 3, 40}, 1, {1, 1, 64, 0, 0, 1, false, Dtype::bf16, 32}},
      {{40, 3, 20}, 4, {1, 1, 64, 0, 0, 1, false, Dtype::f32}},
      {{43, 0, 20, 70, 1, 9}, 1, {4, 1, 64, 0, 0, 1, false, Dtype::bf16, 100, 4}},
      {{20, 0, 68, 9}, 16, {3, 2, 64, 0, 0, 1, true, Dtype::f16, 1 << 20, 2}},
      {{31, 50}, 1, {3, 1, 128, 0, 0, 1, false, Dtype::bf16, 64, 2}},
  };
  std::uint32_t seed = 50;
  for (const Batch& batch : kBatches) {
    Shape shape = batch.shape;
    shape.n = shape.context = static_cast<int>(RaggedRows{batch.lengths, batch.pad, 1}.rows());
    const std::vector<std::int32_t> reach = reach_of(batch.lengths, batch.pad, shape.n);
    Case c(shape, seed++, &reach);
    // Rows of none, and those of the second sequence, hold what must not be seen from elsewhere.
    const std::int32_t second = reach[0] + static_cast<std::int32_t>(RaggedRows::up(batch.lengths[0], batch.pad));
    for (int row = 0; row < shape.n; ++row) {
      const std::int32_t begin = reach[static_cast<std::size_t>(2 * row)], end = reach[static_cast<std::size_t>(2 * row + 1)];
      if (begin < end && begin != second) continue;
      if (shape.dtype == Dtype::f16) continue;  // the bench makes no NaN of it
      for (const Tensor& t : {c.q, c.k, c.v})
        for (int column = 0; column < t.dim[3]; ++column) c.b.set(t, {0, 0, row, column}, std::nan(""));
    }
    if (shape.dtype == Dtype::f32)
      c.run({Where::host, Where::portable, Where::warps});
    else
      c.run(kEverywhere);
    if (HasFailure()) return;
  }
}

TEST(AttentionBlock, LimitsOfEachRowMayBeAnything) {
  for (std::uint32_t seed = 0; seed < (ccks::test::short_sweeps() ? 2u : 4u); ++seed) {
    std::mt19937 rng(seed);
    const auto pick = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
    Shape shape{pick(1, 2), pick(1, 2), seed % 3 == 0 ? 128 : 64, pick(1, 50), pick(1, 100)};
    shape.causal = shape.n <= shape.context && pick(0, 1) == 1;
    shape.tile_rows = pick(0, 1) == 1 ? 16 : 200;
    std::vector<std::int32_t> reach;
    for (int row = 0; row < shape.n; ++row) {
      const int begin = pick(-5, shape.context);
      reach.push_back(begin);
      reach.push_back(pick(0, 4) == 0 ? begin - pick(0, 3) : pick(begin, shape.context + 9));
    }
    Case(shape, seed + 500, &reach).run(kEverywhere);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ccks::worker::test
