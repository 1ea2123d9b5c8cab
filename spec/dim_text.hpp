// Reads dim expressions: `4*d`, `ceildiv(n, 64)`, `pos + n - 1`, `n // 64`, `n % 8`, `min(n, 64)`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/diagnostics.hpp"

namespace ccks::spec {

/// What names mean where an expression stands.
class DimNames {
 public:
  virtual ~DimNames() = default;
  virtual std::optional<Expr> find_dim(std::string_view name) const = 0;
  virtual std::vector<std::string> dim_names() const = 0;
  virtual std::span<const Symbol> symbols() const = 0;
};

/// Parses one expression from `text` at `position`, and stops before the first character that cannot continue it.
class DimParser {
 public:
  DimParser(const Text& text, std::size_t position, const DimNames& names, Diagnostics& diagnostics)
      : text_(text), position_(position), names_(names), diagnostics_(diagnostics) {}

  /// Nothing after a complaint.
  std::optional<Expr> expression();
  /// Consumes `c` (after blanks) if it comes next.
  bool accept(char c);
  bool at_end();
  std::size_t position() const { return position_; }

 private:
  std::optional<Expr> product();
  std::optional<Expr> unary();
  std::optional<Expr> primary();
  std::optional<Expr> number();
  std::optional<Expr> name_or_call();
  std::optional<Expr> call(std::string_view function, std::size_t at);
  std::optional<Expr> divide(std::string_view function, const Expr& a, const Expr& b, std::size_t at);
  std::optional<Expr> checked(Expr e, std::size_t at);
  bool accept_word(std::string_view word);
  void skip_blanks();
  std::nullopt_t fail(Code code, std::size_t at, std::size_t length, std::string message, std::string hint = {});

  const Text& text_;
  std::size_t position_;
  const DimNames& names_;
  Diagnostics& diagnostics_;
  int depth_ = 0;
};

/// The whole of `text` as one expression.
std::optional<Expr> parse_dim(const Text& text, const DimNames& names, Diagnostics& diagnostics);

bool is_name_start(char c);
bool is_name_part(char c);

}  // namespace ccks::spec
