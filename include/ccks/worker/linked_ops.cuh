// LinkedOps: op bodies that are compiled apart from the worker loop and linked to it. What JIT-compiled workers run: the loop
// is the same for every program, and a body for every program with such an op, so each is compiled once, side by side.
//
//   one unit          CCKS_CUDA_WORKER(ccks::worker::LinkedOps)     the loop
//   one unit          CCKS_CUDA_LINKED_PREFETCH()                   the same for all bodies, as large as many
//   one for each body CCKS_CUDA_LINKED_BODY(name, TypedOp<...>)     extern "C" function `name`
//                     CCKS_CUDA_LINKED_BLOCKS(name, BlocksOp<...>)    and, beside that of a BlocksOp, `name`_block
//                     CCKS_CUDA_LINKED_TURNS(name, TypedOp<...>)      of an expert_matmul: tiles in turn (body_turns.cuh)
//   one unit          ccks_linked_body(...)                         the switch from body numbers to names
//   a unit or none    CCKS_CUDA_LINKED_PRODUCTS(type), CCKS_CUDA_LINKED_EXPERTS(type), CCKS_CUDA_LINKED_ATTENTION(type)   walks that bodies call (linked_walks.hpp)
//
// Bodies obey the register limit of the kernel they are linked to: CCKS_WORKER_REGISTERS, which the JIT defines and gives to
// the compiler, since the linker refuses any that does not.
#pragma once

#define CCKS_LINKED_UNIT
#include "ccks/worker/linked_walks.hpp"
#include "ccks/worker/body_turns.cuh"
#include "ccks/worker/grouped_ops.hpp"
#include "ccks/worker/shaped_ops.hpp"

/// Runs body `body` on a tile: a FaultCode. `lanes` is a CudaLanes, `frame` a RunFrame, `op` an OpParams. turns: 0, or where the BodyTurns of a worker lie in shared memory, whose `number`-th strand
/// that is: then TurnsRun::word.
CCKS_SWITCH_KEEPS
extern "C" __device__ ccks::wire::u32 ccks_linked_body(ccks::wire::u32 body, void* lanes, ccks::wire::u32 turns, ccks::wire::u32 number, const void* frame, const void* op,
                                                       ccks::wire::u32 tile);
/// GenericOps::prefetch.
extern "C" __device__ void ccks_linked_prefetch(ccks::wire::u32 lane, ccks::wire::u32 lanes, const void* frame, const void* op,
                                                ccks::wire::u32 tile);

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A body as the function that is linked: without a call of its own where the op allows, and of a BlocksOp what is not its `name`_block.
template <class Op>
__device__ FaultCode run_linked(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
  if constexpr (requires { Op::run_other(lanes, frame, op, tile); })
    return Op::run_other(lanes, frame, op, tile);
  else if constexpr (requires { Op::run_inline(lanes, frame, op, tile); })
    return Op::run_inline(lanes, frame, op, tile);
  else
    return Op::run(lanes, frame, op, tile);
}

/// What run_in_turn wants of the body of an expert_matmul.
template <class Op>
struct LinkedTurns {
  CudaLanes& lanes;

  __device__ __forceinline__ FaultCode run(const RunFrame& frame, const OpParams& op, u32 tile) { return run_linked<Op>(lanes, frame, op, tile); }
  __device__ __forceinline__ void begin(u32 op, u32 tag) {
    lanes.begin_tile(false, tag);
    name_kept_tiles(op, tag);
  }
};

struct LinkedOps {
  static constexpr bool kAwaitsInputs = true;  // bodies of ops that are kOpEarly do
  static __device__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile, u32 body) {
    return static_cast<FaultCode>(ccks_linked_body(body, &lanes, 0, 0, &frame, &op, tile));
  }
#if CCKS_WORKER_TURNS
  static constexpr bool kRunsInTurn = true;
  static __device__ TurnsRun run_in_turn(CudaLanes& lanes, u32 turns, u32 number, const RunFrame& frame, const OpParams& op, u32 tile, u32 body) {
    return {ccks_linked_body(body, &lanes, turns, number, &frame, &op, tile)};
  }
#endif
  static __device__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run(lanes, frame, op, tile, op.body);
  }
  static __device__ void prefetch(u32 lane, u32 lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    ccks_linked_prefetch(lane, lanes, &frame, &op, tile);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#define CCKS_CUDA_LINKED_PREFETCH()                                                                              \
  extern "C" __device__ void ccks_linked_prefetch(ccks::wire::u32 lane, ccks::wire::u32 lanes, const void* frame,    \
                                                  const void* op, ccks::wire::u32 tile) {                            \
    ccks::worker::GenericOps::prefetch(lane, lanes, *static_cast<const ccks::wire::RunFrame*>(frame),            \
                                       *static_cast<const ccks::wire::OpParams*>(op), tile);                     \
  }

#define CCKS_CUDA_LINKED_BODY(name, Op)                                                                          \
  CCKS_BODY_KEEPS                                                                                                \
  extern "C" __device__ ccks::wire::u32 name(void* lanes, const void* frame, const void* op, ccks::wire::u32 tile) { \
    return static_cast<ccks::wire::u32>(ccks::worker::run_linked<Op>(*static_cast<ccks::worker::CudaLanes*>(lanes), \
                                                *static_cast<const ccks::wire::RunFrame*>(frame),                \
                                                *static_cast<const ccks::wire::OpParams*>(op), tile));           \
  }

// In a worker that is roomy and where nothing streams (CCKS_WORKER_TURNS), else turns are 0.
#define CCKS_CUDA_LINKED_TURNS(name, Op)                                                                                                                   \
  CCKS_BODY_KEEPS                                                                                                                                          \
  extern "C" __device__ ccks::wire::u32 name(void* lanes, ccks::wire::u32 turns, ccks::wire::u32 number, const void* frame, const void* op, ccks::wire::u32 tile) { \
    ccks::worker::LinkedTurns<Op> body{*static_cast<ccks::worker::CudaLanes*>(lanes)};                                                                     \
    return ccks::worker::run_in_turn(body, turns, number, static_cast<const ccks::wire::RunFrame*>(frame), static_cast<const ccks::wire::OpParams*>(op), tile).word; \
  }

#define CCKS_CUDA_LINKED_BLOCKS(name, Op)                                                                       \
  CCKS_BODY_KEEPS                                                                                               \
  extern "C" __device__ ccks::wire::u32 name##_block(const void* frame, const void* op, ccks::wire::u32 tile) { \
    ccks::worker::CudaLanes lanes(nullptr, 0);                                                                  \
    return static_cast<ccks::wire::u32>(Op::run_block(lanes, *static_cast<const ccks::wire::RunFrame*>(frame),  \
                                                      *static_cast<const ccks::wire::OpParams*>(op), tile));    \
  }

#define CCKS_CUDA_LINKED_WALK(name, type, ...)                                                   \
  CCKS_WALK_PRODUCT(name, type) {                                                                \
    using namespace ccks::worker;                                                                \
    CudaLanes lanes(nullptr, 0);                                                                 \
    const GroupedWindow window{rows, columns, row_bytes, column_bytes, m, n, k};                 \
    __VA_ARGS__(lanes, window).run();                                                            \
  }
#define CCKS_CUDA_LINKED_PRODUCT(most, type) CCKS_CUDA_LINKED_WALK(grouped_##most, type, GroupedWalk<ccks::wire::Dtype::type, most, CudaLanes>)
#define CCKS_CUDA_LINKED_NARROW(most, type) CCKS_CUDA_LINKED_WALK(narrow_##most, type, NarrowWalk<ccks::wire::Dtype::type, most, CudaLanes>)
// Blocks of `most` columns, as ProductBlocks has them; 256: of any.
#define CCKS_CUDA_LINKED_PACKETS(most, type)                                                                                                      \
  CCKS_WALK_PRODUCT(packets_##most, type) {                                                                                                       \
    using namespace ccks::worker;                                                                                                                 \
    if (!is_narrow(m, n)) {                                                                                                                       \
      const u32 wide = most == 256 ? product_columns(n) : most;                                                                                   \
      if (wide == 64) return ccks_walk_grouped_64_##type(rows, columns, row_bytes, column_bytes, m, n, k);                                        \
      if (wide == 128) return ccks_walk_grouped_128_##type(rows, columns, row_bytes, column_bytes, m, n, k);                                      \
      if (wide == 192) return ccks_walk_grouped_192_##type(rows, columns, row_bytes, column_bytes, m, n, k);                                      \
      return ccks_walk_grouped_256_##type(rows, columns, row_bytes, column_bytes, m, n, k);                                                       \
    }                                                                                                                                             \
    if (most == 64 || narrow_columns(n) == 64) return ccks_walk_narrow_64_##type(rows, columns, row_bytes, column_bytes, m, n, k);                \
    ccks_walk_narrow_128_##type(rows, columns, row_bytes, column_bytes, m, n, k);                                                                 \
  }
#define CCKS_CUDA_LINKED_PRODUCTS(type) \
  CCKS_CUDA_LINKED_PRODUCT(64, type)    \
  CCKS_CUDA_LINKED_PRODUCT(128, type)   \
  CCKS_CUDA_LINKED_PRODUCT(192, type)   \
  CCKS_CUDA_LINKED_PRODUCT(256, type)   \
  CCKS_CUDA_LINKED_NARROW(64, type)     \
  CCKS_CUDA_LINKED_NARROW(128, type)    \
  CCKS_CUDA_LINKED_PACKETS(64, type)    \
  CCKS_CUDA_LINKED_PACKETS(128, type)   \
  CCKS_CUDA_LINKED_PACKETS(256, type)

#define CCKS_CUDA_LINKED_EXPERT(rows_, type)                                                                              \
  CCKS_WALK_EXPERTS(experts_##rows_, type) {                                                                               \
    using namespace ccks::worker;                                                                                          \
    CudaLanes lanes(nullptr, 0);                                                                                           \
    const ExpertWindow window{rows,  columns,      source,  row_bytes, column_bytes, m, n, k,                              \
                              first, source_bytes, divisor, limit,     wide,         twin_columns};                        \
    return RoutedWalk<ccks::wire::Dtype::type, rows_, CudaLanes>(lanes, window).run();                                     \
  }
#define CCKS_CUDA_LINKED_EXPERTS(type) \
  CCKS_CUDA_LINKED_EXPERT(16, type)                                                                                     \
  CCKS_CUDA_LINKED_EXPERT(32, type)                                                                                     \
  CCKS_CUDA_LINKED_EXPERT(48, type)                                                                                     \
  CCKS_CUDA_LINKED_EXPERT(64, type)                                                                                     \
  CCKS_CUDA_LINKED_EXPERT(96, type)                                                                                     \
  CCKS_CUDA_LINKED_EXPERT(128, type)                                                                                    \
  CCKS_CUDA_LINKED_EXPERT(160, type)                                                                                    \
  CCKS_CUDA_LINKED_EXPERT(192, type)                                                                                    \
  CCKS_CUDA_LINKED_EXPERT(256, type)                                                                                    \
  CCKS_WALK_EXPERTS(experts, type) {                                                                                    \
    using namespace ccks::worker;                                                                                       \
    const auto with = [&](auto walk) {                                                                                  \
      return walk(rows, columns, source, row_bytes, column_bytes, m, n, k, first, source_bytes, divisor, limit, wide, twin_columns);\
    };                                                                                                                  \
    const u32 of = routed_rows(m);                                                                                      \
    if (of == 16) return with([](auto... of) { return ccks_walk_experts_16_##type(of...); });                           \
    if (of == 32) return with([](auto... of) { return ccks_walk_experts_32_##type(of...); });                           \
    if (of == 48) return with([](auto... of) { return ccks_walk_experts_48_##type(of...); });                           \
    if (of == 64) return with([](auto... of) { return ccks_walk_experts_64_##type(of...); });                           \
    if (of == 96) return with([](auto... of) { return ccks_walk_experts_96_##type(of...); });                           \
    if (of == 128) return with([](auto... of) { return ccks_walk_experts_128_##type(of...); });                         \
    if (of == 160) return with([](auto... of) { return ccks_walk_experts_160_##type(of...); });                         \
    if (of == 192) return with([](auto... of) { return ccks_walk_experts_192_##type(of...); });                         \
    return with([](auto... of) { return ccks_walk_experts_256_##type(of...); });                                        \
  }

#define CCKS_CUDA_LINKED_ATTENTION_OF(dims, type)                                                                          \
  CCKS_WALK_ATTENTION(dims, type) {                                                                                        \
    ccks::worker::CudaLanes lanes(nullptr, 0);                                                                             \
    const ccks::worker::AttentionRows of{q, k, v, out, limits, q_row, k_row, v_row, out_row, limits_row, limits_column, rows, context, head, head_end, group, \
                                         reach, reach_step, scale, deep};                                                  \
    ccks::worker::AttentionWalk<dims, ccks::wire::Dtype::type, ccks::worker::CudaLanes>(lanes, of).run();                  \
  }
#define CCKS_CUDA_LINKED_ATTENTION(type)  \
  CCKS_CUDA_LINKED_ATTENTION_OF(64, type) \
  CCKS_CUDA_LINKED_ATTENTION_OF(128, type)
