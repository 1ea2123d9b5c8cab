// Counted dims (CountedDim): read as symbols, so that nobody takes one for another dim of the same extent; checked op by op; replaced by their bounds
// once the program is read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spec/expr.hpp"
#include "spec/program.hpp"
#include "spec/scope.hpp"

namespace ccks::spec {

class Builder;
struct Yaml;

/// A counted dim while a program is read, beside its CountedDim.
struct CountedSymbol {
  SymbolId symbol = 0;
  std::string count;  // name of the tensor that says how many
  Span place;         // where the dim is declared
  Span count_place;
  TensorId tensor = kNone;  // that tensor, once an op has made it
  bool refused = false;     // it cannot be it, which has been said
};

std::optional<Expr> read_counted_dim(Builder& b, const std::string& name, const Yaml& node);
/// Which counted dim `e` is, alone; kNone.
std::uint32_t counted_of(const Builder& b, const Expr& e);
bool mentions_counted(const Builder& b, const Expr& e);
/// After an op: reports the counts that are known now.
void report_counts(Builder& b, const Span& where);
/// Complains where `op` would let rows that do not count get into others. `masks`: the op leaves out those that it reads.
bool check_counted(Builder& b, const Op& op, bool masks, const Span& where);
/// An index of gather whose rows behind the count are 0, made by a map in front; any other as it is.
std::optional<View> mask_index(Builder& b, const View& index, const Span& where);
/// Replaces the symbols by their bounds and marks tensors and views with what they counted.
void settle_counted(Builder& b);

}  // namespace ccks::spec
