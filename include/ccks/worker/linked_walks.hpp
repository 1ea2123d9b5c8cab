// Functions of linked workers (linked_ops.cuh), and how many registers they leave as they were. Where nothing streams: who looks after a ring keeps so much in
// registers over a body that the usual convention costs less.
//
// Walks of bodies are functions of many registers, each in an image once. Bodies of other units call them by these names; everywhere else they are templates.
#pragma once

#include "ccks/worker/isa.hpp"

#if defined(CCKS_LINKED_UNIT) && !CCKS_WORKER_STREAMS
#define CCKS_LINKED_WALKS 1
#define CCKS_SWITCH_KEEPS CCKS_KEEPS(16)
#define CCKS_BODY_KEEPS CCKS_KEEPS(18)
#else
#define CCKS_LINKED_WALKS 0
#define CCKS_SWITCH_KEEPS
#define CCKS_BODY_KEEPS
#endif

#if CCKS_LINKED_WALKS

// product_group.hpp: of one width each. And one of these or of the narrow ones below, whichever a block is for, of blocks of 64 or 128 columns, or, 256, of any: a call of one
// has its arguments in place once.
#define CCKS_WALK_PRODUCT(name, type)                                                                                                                \
  CCKS_KEEPS(8)                                                                                                                                      \
  extern "C" __device__ void ccks_walk_##name##_##type(const ccks::wire::u8* rows, const ccks::wire::u8* columns, ccks::wire::u32 row_bytes,          \
                                                       ccks::wire::u32 column_bytes, ccks::wire::u32 m, ccks::wire::u32 n, ccks::wire::u32 k)
#define CCKS_WALKS_OF_PRODUCTS(type)    \
  CCKS_WALK_PRODUCT(grouped_64, type);  \
  CCKS_WALK_PRODUCT(grouped_128, type); \
  CCKS_WALK_PRODUCT(grouped_192, type); \
  CCKS_WALK_PRODUCT(grouped_256, type); \
  CCKS_WALK_PRODUCT(packets_64, type);  \
  CCKS_WALK_PRODUCT(packets_128, type); \
  CCKS_WALK_PRODUCT(packets_256, type)
CCKS_WALKS_OF_PRODUCTS(bf16);
CCKS_WALKS_OF_PRODUCTS(f16);
// product_narrow.hpp
CCKS_WALK_PRODUCT(narrow_64, bf16);
CCKS_WALK_PRODUCT(narrow_128, bf16);
CCKS_WALK_PRODUCT(narrow_64, f16);
CCKS_WALK_PRODUCT(narrow_128, f16);
// product_routed.hpp, of so many rows: ExpertWindow field by field. The last is whichever a block is for.
#define CCKS_WALK_EXPERTS(name, type)                                                                                                                \
  CCKS_KEEPS(8)                                                                                                                                      \
  extern "C" __device__ bool ccks_walk_##name##_##type(                                                                                              \
      const ccks::wire::u8* rows, const ccks::wire::u8* columns, const ccks::wire::u8* source, ccks::wire::u32 row_bytes, ccks::wire::u32 column_bytes, \
      ccks::wire::u32 m, ccks::wire::u32 n, ccks::wire::u32 k, ccks::wire::u32 first, ccks::wire::u32 source_bytes, ccks::wire::u32 divisor,           \
      ccks::wire::i64 limit, bool wide, const ccks::wire::u8* twin_columns)
#define CCKS_WALKS_OF_EXPERTS(type)   \
  CCKS_WALK_EXPERTS(experts_16, type); \
  CCKS_WALK_EXPERTS(experts_32, type); \
  CCKS_WALK_EXPERTS(experts_48, type); \
  CCKS_WALK_EXPERTS(experts_64, type); \
  CCKS_WALK_EXPERTS(experts_96, type); \
  CCKS_WALK_EXPERTS(experts_128, type); \
  CCKS_WALK_EXPERTS(experts_160, type); \
  CCKS_WALK_EXPERTS(experts_192, type); \
  CCKS_WALK_EXPERTS(experts_256, type); \
  CCKS_WALK_EXPERTS(experts, type)
CCKS_WALKS_OF_EXPERTS(bf16);
CCKS_WALKS_OF_EXPERTS(f16);
// attention_group.hpp: AttentionRows, field by field
#define CCKS_WALK_ATTENTION(dims, type)                                                                                                          \
  CCKS_KEEPS(8)                                                                                                                                  \
  extern "C" __device__ void ccks_walk_attention_##dims##_##type(                                                                                \
      const ccks::wire::u8* q, const ccks::wire::u8* k, const ccks::wire::u8* v, ccks::wire::u8* out, const ccks::wire::u8* limits, ccks::wire::u32 q_row, \
      ccks::wire::u32 k_row, ccks::wire::u32 v_row, ccks::wire::u32 out_row, ccks::wire::u32 limits_row, ccks::wire::u32 limits_column, ccks::wire::u32 rows, \
      ccks::wire::u32 context, ccks::wire::u32 head, ccks::wire::u32 head_end, ccks::wire::u32 group, ccks::wire::i32 reach, ccks::wire::i32 reach_step,  \
      float scale, bool deep)
CCKS_WALK_ATTENTION(64, bf16);
CCKS_WALK_ATTENTION(128, bf16);
CCKS_WALK_ATTENTION(64, f16);
CCKS_WALK_ATTENTION(128, f16);

#endif
