#include "tests/unit/worker/emulated_stream.hpp"

#include "ccks/worker/ops_matmul.hpp"

namespace ccks::worker::test {
namespace {

struct Body {
  template <class Lanes>
  static FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    const Call call(frame, op);
    return run_matmul(lanes, call, tile, RuntimeTypes{call.operands}, FrameCode{call.code(), op.code_count});
  }
};

}  // namespace

template <>
FaultCode run_streamed<ProductsByFrame>(const wire::RunFrame& frame, const wire::OpParams& op) {
  return run_streamed<Body>(frame, op);
}

}  // namespace ccks::worker::test
