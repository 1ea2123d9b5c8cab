// Tagged edges: where a product of few rows may take its input from a tagged copy (wire::tagged_value), and so begin before the events of
// the product that makes it are there.
#pragma once

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

/// Finds them, and room for the copies behind the slot's arena. What makes a body that overtakes its events right:
/// - of what it reads, only `a` is written by an op of the run, by one, and each element once; so tags say all it has to know;
/// - what it writes nobody else has in use in the run: no other tensor lies there, and no op in front of it touches it;
/// - it waits only for that op, so nothing else has to have ended;
/// - neither op has guards: a tile that is skipped would tag nothing;
/// - run again, after its worker was suspended before it, it writes what it wrote.
/// Instance says at the dims which of the edges have bodies for it.
///
/// A chain of such edges from an op that waits for nothing needs no events at all where nobody else reads what lies between (TaggedEdge::alone): tiles of the chain in
/// one list then run as strands (wire::kRecordJoined), each from tag to tag. A tag carries no order with it, so what waits for the chain's end may rely on the
/// chain's last op and on nothing in front of it: hence both conditions.
void find_tagged_edges(PlanTables& tables);

}  // namespace ccks::scheduler
