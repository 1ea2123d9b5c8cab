// Ragged dims: the tables that say which rows belong to which sequence, made where a program names them, and filled for who gives no lengths.
#include "spec/ragged.hpp"

#include <algorithm>

#include "ccks/ragged.hpp"
#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

constexpr std::string_view kTableNames[RaggedDim::kTables] = {"reach", "spans", "position"};

std::vector<Expr> shape_of_table(const RaggedDim& r, std::size_t table) {
  const Expr rows = Expr::symbol(r.rows);
  if (table == RaggedDim::position) return {rows};
  return {table == RaggedDim::spans ? r.count : rows, Expr(2)};
}

}  // namespace

const RaggedDim* ragged_of(const Program& program, std::string_view name) {
  const std::string_view dim = name.substr(0, name.find('.'));
  for (const RaggedDim& r : program.ragged)
    if (program.symbols[r.rows].name == dim) return &r;
  return nullptr;
}

std::optional<View> ragged_table(Builder& b, const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const RaggedDim* found = ragged_of(b.program, name);
  if (found == nullptr) return std::nullopt;
  const auto which = std::find(std::begin(kTableNames), std::end(kTableNames), std::string_view(name).substr(dot + 1));
  if (which == std::end(kTableNames)) return std::nullopt;
  const auto table = static_cast<std::size_t>(which - std::begin(kTableNames));
  RaggedDim& r = b.program.ragged[static_cast<std::size_t>(found - b.program.ragged.data())];
  if (r.tables[table] == kNone) {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = Dtype::i32;
    tensor.kind = TensorKind::input;
    tensor.shape = shape_of_table(r, table);
    if (const auto place = b.dim_places.find(b.program.symbols[r.rows].name); place != b.dim_places.end())
      tensor.location = place->second.location;
    r.tables[table] = b.add_tensor(std::move(tensor));
  }
  return b.whole_view(r.tables[table]);
}

std::vector<std::int32_t> seeded_lengths(const Program& program, const RaggedDim& r, std::span<const std::int64_t> dims, std::uint64_t seed) {
  const auto count = r.count.evaluate(dims);
  std::vector<std::int32_t> lengths;
  std::int64_t left = dims[r.rows];
  const std::int64_t least = RaggedRows::up(r.length.lo, r.pad);
  for (std::int64_t i = 0; count && i < *count; ++i) {
    const std::int64_t after = *count - i - 1;
    // Whatever it is cut to, those behind it have their least; about twice the mean at most, so that the last ones have more than that.
    const std::int64_t room = std::max<std::int64_t>(0, left - after * least) / r.pad * r.pad;
    const std::int64_t top = std::min({r.length.hi, room, std::max(r.length.lo, 2 * left / (after + 1) - r.length.lo)});
    const std::int64_t low = std::min(r.length.lo, top);
    const auto length = static_cast<std::int64_t>(seeded_number(seed, program.symbols[r.rows].name, static_cast<std::uint64_t>(i)) %
                                                  static_cast<std::uint64_t>(top - low + 1)) + low;
    lengths.push_back(static_cast<std::int32_t>(length));
    left -= RaggedRows::up(length, r.pad);
  }
  return lengths;
}

bool fill_ragged(const Program& program, TensorId id, std::span<const std::int32_t> lengths, std::span<std::int32_t> out) {
  for (const RaggedDim& r : program.ragged) {
    const auto table = std::find(r.tables.begin(), r.tables.end(), id);
    if (table == r.tables.end()) continue;
    RaggedRows{lengths, r.pad, r.round}.write(static_cast<std::size_t>(table - r.tables.begin()), out);
    return true;
  }
  return false;
}

}  // namespace ccks::spec
