// A combine on a Bench: each token's k rows of x, weighed and added up, and, if it `ends` so, an operand of its epilogue behind.
#pragma once

#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {

struct CombineCase {
  Bench& b;
  int tokens, k;
  bool ends;
  Tensor x, weight, row, added, out;

  /// `dense`: x, out and the epilogue's operand lie without gaps.
  CombineCase(Bench& bench, Dtype from, Dtype to, int tokens_, int k_, int width, bool dense, bool ends_) : b(bench), tokens(tokens_), k(k_), ends(ends_) {
    x = b.tensor(from, {1, 1, tokens * k, width}, dense);
    weight = b.tensor(Dtype::f32, {1, 1, tokens, k});
    row = b.tensor(Dtype::i32, {1, 1, tokens, k});
    added = b.tensor(to, {1, 1, tokens, width}, dense);
    out = b.tensor(to, {1, 1, tokens, width}, dense);
    b.fill(x, -1, 1);
    b.fill(weight, 0, 1);
    b.fill(row, 0, tokens * k - 1);
    b.fill(added, -1, 1);
    b.operands = {x, weight, row};
    if (ends) {
      b.operands.push_back(added);
      b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
      b.op.dims[wire::kEpilogueDim] = 3;
    }
    b.operands.push_back(out);
    b.op.dims[0] = k;
  }
  double want(int token, int column) {
    double sum = ends ? b.get(added, {0, 0, token, column}) : 0;
    for (int j = 0; j < k; ++j) sum += b.get(weight, {0, 0, token, j}) * b.get(x, {0, 0, static_cast<int>(b.get(row, {0, 0, token, j})), column});
    return sum;
  }
  /// On every machine, and that `bad` is no row to any of `machines`.
  void check(std::initializer_list<Machine> machines, int bad) {
    const std::size_t inputs = ends ? 4 : 3;
    b.check(OpCode::combine, inputs, [&](std::size_t, const Index& c) { return want(c[2], c[3]); });
    b.set(row, {0, 0, tokens - 1, k - 1}, bad);
    for (const Machine m : machines) EXPECT_EQ(b.run(m, OpCode::combine, inputs), FaultCode::bad_index);
  }
};

}  // namespace ccks::worker::test
