// Norms folded into the products that read them: a decode step has a norm of one row before every few products, and while its one
// tile runs all other workers wait.
#pragma once

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

/// fold_norms gives the program that is planned and checked in place of `program`: an rmsnorm of few rows that only products read is
/// gone, and they norm their rows themselves (spec::MatmulAttrs::norm). Tensors keep their ids; one that nobody writes or reads is left.
spec::Program fold_norms(const spec::Program& program, const PlanOptions& options);

}  // namespace ccks::codegen
