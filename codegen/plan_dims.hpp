// DimTable: compiles expressions to DimNodes, each distinct node once, operands before users.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "ccks/plan.hpp"
#include "spec/expr.hpp"

namespace ccks::codegen {

class DimTable {
 public:
  plan::DimId constant(std::int64_t value) { return node(plan::DimOp::constant, 0, 0, value); }
  plan::DimId of(const spec::Expr& e);
  std::vector<plan::DimNode> take() { return std::move(nodes_); }

 private:
  struct ExprHash {
    std::size_t operator()(const spec::Expr& e) const { return e.hash(); }
  };
  plan::DimId node(plan::DimOp op, std::uint32_t a, std::uint32_t b, std::int64_t value);
  plan::DimId compile(const spec::Expr& e);
  plan::DimId sum(const spec::Expr& e);

  std::vector<plan::DimNode> nodes_;
  std::map<std::tuple<plan::DimOp, std::uint32_t, std::uint32_t, std::int64_t>, plan::DimId> known_;
  std::unordered_map<spec::Expr, plan::DimId, ExprHash> compiled_;
};

}  // namespace ccks::codegen
