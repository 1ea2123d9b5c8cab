// Rotary embeddings of a program that share their angles.
#pragma once

#include "spec/program.hpp"

namespace ccks::codegen {

/// share_angles gives ropes of the same angles a table of their cosines and sines, made by an op in front of all others: a layer's rope
/// then is a few loads and products, where the angles take a body four times as long, which each layer would fetch anew.
/// Tensors keep their ids.
void share_angles(spec::Program& program);

/// Whether it has: input 1 is [n, dims of a head] f32, the cosines of a head's pairs and then their sines.
inline bool has_table(const spec::Op& op) {
  const auto* rope = std::get_if<spec::RopeAttrs>(&op.attrs);
  return rope != nullptr && !rope->has_positions && op.inputs.size() == 2;
}

}  // namespace ccks::codegen
