// Windows: strided reads and writes, and blocks of inner dims.
#include <functional>
#include <numeric>

#include "spec/reference.hpp"
#include "spec/reference_internal.hpp"

namespace ccks::spec::reference {
namespace {

// Calls visit(pointer to the row's first element, row number) for each row of the last dim, in row-major order.
template <class Visit>
void for_each_row(const Window& window, Visit&& visit) {
  const std::int64_t rows = block_count(window, 1);
  if (window.count() == 0) return;
  for (std::int64_t row = 0; row < rows; ++row) visit(block_at(window, row, 1), row);
}

std::int64_t row_extent(const Window& window) { return window.rank() == 0 ? 1 : window.back(0); }
std::int64_t row_stride(const Window& window) { return window.rank() == 0 ? 0 : window.strides.back(); }

}  // namespace

std::int64_t Window::count() const {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t block_count(const Window& window, std::size_t inner_rank) {
  std::int64_t blocks = 1;
  for (std::size_t d = 0; d + inner_rank < window.rank(); ++d) blocks *= window.extents[d];
  return blocks;
}

double* block_at(const Window& window, std::int64_t block, std::size_t inner_rank) {
  double* at = window.data;
  const std::size_t outer_rank = window.rank() > inner_rank ? window.rank() - inner_rank : 0;
  for (std::size_t d = outer_rank; d-- > 0;) {
    at += (block % window.extents[d]) * window.strides[d];
    block /= window.extents[d];
  }
  return at;
}

std::vector<double> read(const Window& window) {
  std::vector<double> values(static_cast<std::size_t>(window.count()));
  const std::int64_t extent = row_extent(window), stride = row_stride(window);
  for_each_row(window, [&](const double* from, std::int64_t row) {
    double* to = values.data() + row * extent;
    for (std::int64_t i = 0; i < extent; ++i) to[i] = from[i * stride];
  });
  return values;
}

void write(const Window& window, std::span<const double> values) {
  const std::int64_t extent = row_extent(window), stride = row_stride(window);
  for_each_row(window, [&](double* to, std::int64_t row) {
    const double* from = values.data() + row * extent;
    for (std::int64_t i = 0; i < extent; ++i) to[i * stride] = round_to(window.dtype, from[i]);
  });
}

Status Call::misshapen(const std::string& what) const {
  return {ErrorCode::invalid_argument, "op '" + op.name + "': " + what};
}

}  // namespace ccks::spec::reference
