// while: as many passes as its text allows, each under the condition that all before it ran and the last one said to go on. What
// a pass hands on is carried by name; which pass was the last, and so what follows reads, is settled by selects from the innermost
// pass outwards, each of which runs only where its pass's predecessor did.
#include <fmt/format.h>

#include "spec/blocks.hpp"
#include "spec/ops.hpp"
#include "spec/sections.hpp"

namespace ccks::spec {
namespace {

constexpr std::int64_t kMostPasses = 64;      // of a loop: each pass waits for the reports of all before it, and plans grow with the square
constexpr std::size_t kMostConditions = 512;  // of a program that has loops

class Loop {
 public:
  Loop(Builder& b, const Yaml& node) : b_(b), node_(node), outer_(b.scopes.top().condition), prefix_(b.scopes.top().prefix) {}

  void read() {
    if (!read_head() || !enter_block(b_, node_)) return;
    const std::size_t errors = b_.diagnostics.errors();
    bool whole = true;
    for (std::int64_t i = 0; i < most_ && whole && b_.diagnostics.errors() == errors; ++i) {
      if (b_.diagnostics.full() || b_.exhausted() || !b_.count_work(node_.span)) return;
      if (b_.program.conditions.size() >= kMostConditions) {
        b_.diagnostics.error(code::kTooLarge, node_.span, fmt::format("a program with loops has at most {} conditions, one for each pass and branch", kMostConditions));
        break;
      }
      whole = read_pass(i);
    }
    if (!whole || b_.diagnostics.errors() != errors) return poison_all();
    join();
  }

 private:
  struct Pass {
    std::uint32_t condition = kNone;
    std::vector<View> carried;
  };

  bool read_head() {
    b_.check_keys(node_, {"while", "most", "index", "name", "tensors", "ops", "carry"}, "a while block");
    const Yaml* most = node_.find("most");
    if (!most) {
      b_.diagnostics.error(code::kMissingKey, node_.span, "'while' needs 'most'", "most: 8, the passes that there can be");
      return false;
    }
    const auto count = b_.constant(*most, 1, kMostPasses);
    return count && (most_ = *count, read_index()) && read_label() && read_carry();
  }
  bool read_index() {
    const Yaml* index = node_.find("index");
    if (!index) return true;
    const auto name = ccks::spec::read_index(b_, *index);
    if (name) index_ = label_ = *name;
    return name.has_value();
  }
  bool read_label() {
    const Yaml* label = node_.find("name");
    if (!label) return true;
    const auto text = b_.text(*label);
    return text && b_.check_name(*text) && (label_ = text->text, true);
  }
  bool read_carry() {
    const Yaml* carry = node_.find("carry");
    if (!carry) return true;
    if (!b_.expect(*carry, Yaml::Kind::sequence, "'carry'")) return false;
    for (const Yaml& name : carry->children) {
      if (!b_.expect(name, Yaml::Kind::scalar, "a name in 'carry'")) return false;
      const auto view = parse_operand(b_, name.as_text());
      if (!view) return false;
      const Binding* binding = b_.scopes.find(name.text);
      if (binding == nullptr || binding->declared) {
        b_.diagnostics.error(code::kReadOnly, name.span, in_quotes(name.text) + " cannot be carried",
                             binding == nullptr ? "a name, not a view" : "a declared tensor is written in place: every pass sees it as it is");
        return false;
      }
      names_.push_back(&name);
      before_.push_back(*view);
    }
    return true;
  }

  // A scope beside that of the pass before: of what that one bound, only what is carried and its reports are seen. False: its condition or what it
  // carries is not there, maybe without a word, where an earlier mistake has been told.
  bool read_pass(std::int64_t i) {
    b_.scopes.push(Scope::Kind::condition);
    Scope& scope = b_.scopes.top();
    scope.condition = passes_.empty() ? outer_ : passes_.back().condition;
    scope.reports = reports_;
    if (!index_.empty()) scope.indices[index_] = i;
    for (std::size_t k = 0; k < names_.size() && !passes_.empty(); ++k) {
      Binding binding;
      binding.view = passes_.back().carried[k];
      binding.defined = names_[k]->span;
      scope.names[names_[k]->text] = std::move(binding);
    }
    const auto condition = read_condition(b_, *node_.find("while"));
    if (condition) {
      if (!passes_.empty()) check_report(*condition);
      scope.condition = static_cast<std::uint32_t>(b_.program.conditions.size());
      b_.program.conditions.push_back(*condition);
      made_ = b_.program.reports.size();
      read_body(i);
    }
    b_.scopes.pop();
    return condition.has_value() && passes_.back().carried.size() == names_.size();
  }
  void read_body(std::int64_t i) {
    Scope& scope = b_.scopes.top();
    scope.prefix += fmt::format("{}.{}.", label_, i);
    Pass pass;
    pass.condition = scope.condition;
    if (const Yaml* tensors = node_.find("tensors")) read_tensors(b_, *tensors);
    if (const Yaml* ops = node_.find("ops")) read_ops(b_, *ops);
    for (const Yaml* name : names_) {
      const auto view = parse_operand(b_, name->as_text());
      if (view) pass.carried.push_back(*view);
    }
    reports_ = scope.reports;
    passes_.push_back(std::move(pass));
  }

  /// Of a pass behind the first.
  void check_report(const Condition& condition) {
    if (condition.report >= made_) return;
    b_.diagnostics.error(code::kBadCondition, node_.find("while")->span, "the body does not make the report that this looks at",
                         "{op: report, x: more, name: go} at the end of 'ops' says whether there is another pass, while: go == 1");
  }

  void poison_all() {
    for (const Yaml* name : names_) poison(b_, name->text, name->span);
  }

  void join() {
    std::vector<View> results = passes_.back().carried;
    for (std::size_t i = passes_.size(); i-- > 0;) {
      if (i > 0) {
        b_.scopes.push(Scope::Kind::condition);
        b_.scopes.top().condition = passes_[i - 1].condition;
        b_.scopes.top().prefix = fmt::format("{}{}.{}.", prefix_, label_, i - 1);
      }
      for (std::size_t k = 0; k < names_.size(); ++k) {
        const View& otherwise = i > 0 ? passes_[i - 1].carried[k] : before_[k];
        emit_select(b_, *names_[k], {names_[k]->text, results[k], otherwise, names_[k]}, passes_[i].condition);
        if (const Binding* made = b_.scopes.find(names_[k]->text); made != nullptr && !made->poisoned) results[k] = made->view;
      }
      // What a pass hands to the next need not be read behind the loop.
      for (const View& view : results) b_.mark_read(view.tensor);
      if (i > 0) b_.scopes.pop();
    }
  }

  Builder& b_;
  const Yaml& node_;
  const std::uint32_t outer_;
  const std::string prefix_;
  std::int64_t most_ = 0;
  std::string index_, label_ = "while";
  std::vector<const Yaml*> names_;
  std::vector<View> before_;      // per name: its value in front of the loop
  std::vector<Pass> passes_;
  NameMap<std::uint32_t> reports_;  // of the last pass
  std::size_t made_ = 0;            // before it, of the program
};

}  // namespace

void read_while(Builder& b, const Yaml& node) { Loop(b, node).read(); }

}  // namespace ccks::spec
