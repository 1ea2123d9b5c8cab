// Question: how fast is the host matmul on one core, against OpenBLAS sgemm on the same core?
// Arms: the tile op on f32 and bf16, b plain (k x n) and transposed (n x k), and cblas_sgemm where libopenblas is
// found. One JSON line per arm and shape; GFLOP/s of the median, 99th percentile and slowest of at least 30 runs.
//
// The op is compiled for AVX2 and FMA here, whatever the flags of the build: that is the copy most hosts select. The
// standard headers stand before the switch, so that their inline functions stay as other files compile them.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#if defined(__x86_64__) && !defined(__AVX2__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c,bmi2")
#define CCKS_ISA isa_bench_v3
#define CCKS_VECTOR_BYTES 32
#endif

#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/typed_ops.hpp"

namespace {

using namespace ccks::worker;

struct Shape {
  u32 m, k, n;
};

/// All arms see the same numbers; bf16 arms the same rounded.
struct Matrices {
  Shape s;
  std::vector<float> a, b, b_turned, c;
  std::vector<u16> a16, b16, b16_turned, c16;

  explicit Matrices(const Shape& shape)
      : s(shape),
        a(shape.m * shape.k),
        b(shape.k * shape.n),
        b_turned(b.size()),
        c(shape.m * shape.n),
        a16(a.size()),
        b16(b.size()),
        b16_turned(b.size()),
        c16(c.size()) {
    std::mt19937 rng(1);
    std::uniform_real_distribution<float> draw(-1, 1);
    for (float& v : a) v = draw(rng);
    for (float& v : b) v = draw(rng);
    for (u32 p = 0; p < s.k; ++p)
      for (u32 j = 0; j < s.n; ++j) b_turned[j * s.k + p] = b[p * s.n + j];
    const auto round = [](const std::vector<float>& from, std::vector<u16>& to) {
      for (std::size_t i = 0; i < from.size(); ++i) to[i] = f32_to_bf16(from[i]);
    };
    round(a, a16);
    round(b, b16);
    round(b_turned, b16_turned);
  }
};

/// A frame with one matmul, tiled as the planner is told to.
struct MatmulFrame {
  RunFrame frame{};
  OpParams op{};
  OperandParams operands[3]{};

  MatmulFrame(const Shape& s, Dtype dtype, const void* a, const void* b, void* c, bool turned) {
    frame.operands = static_cast<u32>(reinterpret_cast<u8*>(operands) - reinterpret_cast<u8*>(&frame));
    TileQuestion q;
    q.kind = OpCode::matmul;
    q.extent[2] = s.m;
    q.extent[3] = s.n;
    q.depth = s.k;
    const TileHint hint = tile_hint(q);
    const i32 extent[4] = {1, 1, static_cast<i32>(s.m), static_cast<i32>(s.n)};
    op.tile_count = 1;
    for (u32 i = 0; i < 4; ++i) {
      op.tile[i] = hint.tile[i];
      op.grid[i] = (extent[i] + op.tile[i] - 1) / op.tile[i];
      op.tile_count *= static_cast<u32>(op.grid[i]);
    }
    op.kind = static_cast<u8>(OpCode::matmul);
    op.input_count = 2;
    op.output_count = 1;
    op.dims[ccks::wire::kEpilogueDim] = 2;
    set(operands[0], dtype, a, s.m, s.k, s.k, 1);
    set(operands[1], dtype, b, s.k, s.n, turned ? 1 : s.n, turned ? s.k : 1);
    set(operands[2], dtype, c, s.m, s.n, s.n, 1);
  }
  static void set(OperandParams& p, Dtype dtype, const void* data, u32 rows, u32 columns, i64 row_stride,
                  i64 column_stride) {
    p.offset = reinterpret_cast<u64>(data);  // the arena's base is address 0
    p.dtype = static_cast<u8>(dtype);
    p.dim[0] = p.dim[1] = 1;
    p.dim[2] = static_cast<i32>(rows);
    p.dim[3] = static_cast<i32>(columns);
    p.stride[2] = row_stride;
    p.stride[3] = column_stride;
  }
};

/// Processor time of this thread: neighbours on a busy machine do not count.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Body>
std::vector<double> time_runs(Body&& body) {
  std::vector<double> seconds;
  body();
  const double begin = thread_seconds();
  while (seconds.size() < 30 || thread_seconds() - begin < 0.3) {
    const double start = thread_seconds();
    body();
    seconds.push_back(thread_seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void print(const char* arm, const Shape& s, const std::vector<double>& seconds, double weight_bytes) {
  const double work = 2.0 * s.m * s.k * s.n;
  const auto at = [&](double part) {
    return seconds[static_cast<std::size_t>(part * static_cast<double>(seconds.size() - 1))];
  };
  std::printf(
      "{\"bench\": \"matmul\", \"arm\": \"%s\", \"m\": %u, \"k\": %u, \"n\": %u, \"runs\": %zu, \"gflops_p50\": %.2f, "
      "\"gflops_p99\": %.2f, \"gflops_min\": %.2f, \"b_gbytes_per_s_p50\": %.2f}\n",
      arm, s.m, s.k, s.n, seconds.size(), work / at(0.5) * 1e-9, work / at(0.99) * 1e-9, work / seconds.back() * 1e-9,
      weight_bytes / at(0.5) * 1e-9);
  std::fflush(stdout);
}

using OpF32 = TypedOp<OpCode::matmul, Code<>, Dtype::f32, Dtype::f32, Dtype::f32>;
using OpBf16 = TypedOp<OpCode::matmul, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>;

template <class Op>
void run_op(const char* arm, Matrices& x, Dtype dtype, const void* a, const void* b, void* c, bool turned) {
  MatmulFrame f(x.s, dtype, a, b, c, turned);
  std::vector<u8> memory(kHostScratchBytes + 128);
  u8* scratch = memory.data() + (128 - reinterpret_cast<u64>(memory.data()) % 128);
  HostLanes lanes(scratch, kHostScratchBytes);
  const auto seconds = time_runs([&] {
    for (u32 tile = 0; tile < f.op.tile_count; ++tile) Op::run(lanes, f.frame, f.op, tile);
  });
  print(arm, x.s, seconds, static_cast<double>(x.b.size()) * ccks::wire::dtype_bytes(dtype));
}

using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);
Sgemm find_sgemm() {
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
}

void run_blas(const char* arm, Sgemm sgemm, Matrices& x, const float* b, bool turned) {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  const int m = static_cast<int>(x.s.m), k = static_cast<int>(x.s.k), n = static_cast<int>(x.s.n);
  const auto seconds = time_runs([&] {
    sgemm(kRowMajor, kPlain, turned ? kTransposed : kPlain, m, n, k, 1.0f, x.a.data(), k, b, turned ? k : n, 0.0f,
          x.c.data(), n);
  });
  print(arm, x.s, seconds, static_cast<double>(x.b.size()) * 4);
}

}  // namespace

int main() {
#if defined(__x86_64__) && !defined(__clang__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fprintf(stderr, "bench_matmul: this machine has no AVX2\n");
    return 4;
  }
#endif
  const Sgemm sgemm = find_sgemm();
  if (sgemm == nullptr) std::fprintf(stderr, "bench_matmul: no libopenblas.so.0, its arms are left out\n");
  for (const Shape& s : {Shape{512, 512, 512}, Shape{1024, 1024, 1024}, Shape{128, 2048, 2048}, Shape{16, 2048, 2048},
                         Shape{4, 2048, 2048}, Shape{1, 2048, 8192}}) {
    Matrices x(s);
    run_op<OpF32>("op f32 b[k,n]", x, Dtype::f32, x.a.data(), x.b.data(), x.c.data(), false);
    run_op<OpF32>("op f32 b[n,k]", x, Dtype::f32, x.a.data(), x.b_turned.data(), x.c.data(), true);
    run_op<OpBf16>("op bf16 b[k,n]", x, Dtype::bf16, x.a16.data(), x.b16.data(), x.c16.data(), false);
    run_op<OpBf16>("op bf16 b[n,k]", x, Dtype::bf16, x.a16.data(), x.b16_turned.data(), x.c16.data(), true);
    if (sgemm == nullptr) continue;
    run_blas("openblas f32 b[k,n]", sgemm, x, x.b.data(), false);
    run_blas("openblas f32 b[n,k]", sgemm, x, x.b_turned.data(), true);
  }
  return 0;
}
