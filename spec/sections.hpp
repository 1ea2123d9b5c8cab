// The sections and blocks of a spec, in the order in which a reader meets them.
#pragma once

#include "spec/builder.hpp"

namespace ccks::spec {

/// The whole of files[0].
void read_program(Builder& b, const Yaml& root);
/// Checks that say something about the program as a whole: outputs written, nothing made in vain.
void check_program(Builder& b);

void read_dims(Builder& b, const Yaml& dims);
void read_tensors(Builder& b, const Yaml& tensors);
void read_ops(Builder& b, const Yaml& ops);
void read_repeat(Builder& b, const Yaml& node);
void read_if(Builder& b, const Yaml& node);
void read_while(Builder& b, const Yaml& node);
/// `include: file` or a list of them: their dims, tensors and ops, here.
void read_include(Builder& b, const Yaml& node);
/// Collects every name under an `out` in `node`.
void collect_later_names(const Yaml& node, std::set<std::string, std::less<>>& names);

}  // namespace ccks::spec
