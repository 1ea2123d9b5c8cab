// Pieces of a tile's life that do not depend on who runs it: guards and reports. Used by kernels and host calls of one op;
// the worker loop needs the same of its control lanes.
//
// run_op_tile   one tile of one op without events: guards, body, report. Every lane calls it with the same arguments.
#pragma once

#include "ccks/wire/frame.hpp"
#include "ccks/wire/op_launch.hpp"
#include "ccks/wire/ring.hpp"
#include "ccks/wire/task.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

using wire::u32;
using wire::u64;
using wire::u8;

template <class T>
CCKS_HD inline const T* frame_part(const wire::RunFrame& frame, u32 offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(&frame) + offset);
}

template <class T>
CCKS_HD inline bool guard_compare(wire::Compare how, T word, T value) {
  switch (how) {
    case wire::Compare::eq: return word == value;
    case wire::Compare::ne: return word != value;
    case wire::Compare::lt: return word < value;
    case wire::Compare::le: return word <= value;
    case wire::Compare::gt: return word > value;
    case wire::Compare::ge: return word >= value;
  }
  return false;
}

CCKS_HD inline bool guard_holds(const wire::RunFrame& frame, const wire::GuardParams& guard) {
  const wire::Compare how = static_cast<wire::Compare>(guard.compare);
  const u64 address = frame.arena + guard.offset;
  if (guard.is_float != 0) return guard_compare(how, *reinterpret_cast<const float*>(address), guard.float_value);
  return guard_compare(how, *reinterpret_cast<const wire::i32*>(address), guard.int_value);
}

/// Whether all guards of `op` hold. What they look at has been written: the op comes after the report's.
CCKS_HD inline bool op_guards_hold(const wire::RunFrame& frame, const wire::OpParams& op) {
  const wire::GuardParams* guards = frame_part<wire::GuardParams>(frame, frame.guards) + op.guard_first;
  for (u32 i = 0; i < op.guard_count; ++i) {
    if (!guard_holds(frame, guards[i])) return false;
  }
  return true;
}

/// Of an op that has a report the first tile publishes it, and makes all of it.
CCKS_HD inline bool publishes_report(const wire::OpParams& op, u32 tile) { return op.report >= 0 && tile == 0; }

/// Where the value lies that `op` reports.
CCKS_HD inline const u32* report_source(const wire::RunFrame& frame, const wire::OpParams& op) {
  // An operand of the op itself lies in the copy that a worker has of it, if it has one.
  const u32 own = op.report_operand - op.operand_first;
  const bool close = op.operands != 0 && own < u32{op.input_count} + op.output_count;
  const wire::OperandParams& operand = close ? reinterpret_cast<const wire::OperandParams*>(op.operands)[own]
                                             : frame_part<wire::OperandParams>(frame, frame.operands)[op.report_operand];
  const wire::Space space = static_cast<wire::Space>(operand.space);
  const u64 base = space == wire::Space::absolute  ? 0
                   : space == wire::Space::arena   ? frame.arena
                   : space == wire::Space::weights ? frame.weights
                                                   : frame.state;
  return reinterpret_cast<const u32*>(base + operand.offset);
}

/// Copies the value, of report_source, to the slot's report area: `lane` of `lanes` takes its share. Bytes are whole words: i32 or f32.
/// Relaxed stores: a later record, or the end of the launch, publishes them.
template <class Atoms>
CCKS_HD inline void copy_report(Atoms atoms, const u32* from, const wire::RunFrame& frame, const wire::OpParams& op, u32 lane,
                                    u32 lanes) {
  u32* to = reinterpret_cast<u32*>(frame.reports + op.report_offset);
  for (u32 i = lane; i < op.report_bytes / sizeof(u32); i += lanes) atoms.link_store_relaxed(&to[i], from[i]);
}

/// A body's fault code on this lane; bodies may return nothing.
template <class Ops, class Lanes>
CCKS_HD inline u32 run_op_body(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
  if constexpr (requires { static_cast<u32>(Ops::run(lanes, frame, op, tile)); }) {
    return static_cast<u32>(Ops::run(lanes, frame, op, tile));
  } else {
    Ops::run(lanes, frame, op, tile);
    return 0;
  }
}

/// The same where the caller has looked at `body`, the op's, before.
template <class Ops, class Lanes>
CCKS_HD inline u32 run_known_body(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile, u32 body) {
  if constexpr (requires { static_cast<u32>(Ops::run(lanes, frame, op, tile, body)); }) {
    return static_cast<u32>(Ops::run(lanes, frame, op, tile, body));
  } else {
    return run_op_body<Ops>(lanes, frame, op, tile);
  }
}

/// Writes a fault where the host finds it: one of those that occurred, whole. Any lane may call it.
template <class Atoms>
CCKS_HD inline void note_op_fault(Atoms atoms, const wire::OpLaunch& launch, wire::FaultCode code, u32 tile) {
  const wire::SlotWords words{static_cast<u32>(code) | static_cast<u64>(launch.op) << 32, tile};
  atoms.store_slot_relaxed(reinterpret_cast<void*>(launch.status), words);
}

/// One tile of `launch.op`, whose inputs are there. Returns the fault code of this lane.
template <class Ops, class Lanes, class Atoms>
CCKS_HD inline u32 run_op_tile(Lanes& lanes, Atoms atoms, const wire::OpLaunch& launch, u32 tile) {
  const wire::RunFrame& frame = *reinterpret_cast<const wire::RunFrame*>(launch.frame);
  const wire::OpParams& op = frame_part<wire::OpParams>(frame, frame.ops)[launch.op];
  if (!op_guards_hold(frame, op)) return 0;
  const u32 fault = run_op_body<Ops>(lanes, frame, op, tile);
  if (fault != 0) note_op_fault(atoms, launch, static_cast<wire::FaultCode>(fault), tile);
  if (!publishes_report(op, tile)) return fault;
  lanes.sync();  // the value was written by other lanes
  if (fault != 0) return fault;
  copy_report(atoms, report_source(frame, op), frame, op, lanes.lane(), lanes.lanes());
  u32* published = reinterpret_cast<u32*>(launch.status + sizeof(wire::OpStatus)) + op.report;
  if (lanes.lane() == 0) atoms.link_store_relaxed(published, 1);
  return 0;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker
