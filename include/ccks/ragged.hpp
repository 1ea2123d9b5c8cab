// Rows of sequences of different lengths, one after another: how many there are, and whose they are. Whoever has lengths makes the
// tables of a ragged dim from them (spec::RaggedDim, plan::RaggedDesc): the engine when a run is submitted, tools, the reference.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ccks {

/// Lengths of sequences, in rows, none negative. Each begins at a multiple of `pad` rows, rows in all are a multiple of `round`; both at least 1.
struct RaggedRows {
  std::span<const std::int32_t> lengths;
  std::int64_t pad = 1, round = 1;

  static std::int64_t up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

  /// Rows in all: at least one, so that no tensor is empty.
  std::int64_t rows() const {
    std::int64_t all = 0;
    for (const std::int32_t length : lengths) all += up(length, pad);
    return std::max<std::int64_t>(1, up(all, round));
  }

  /// [begin, end) of each sequence: 2 * lengths.size() numbers.
  void write_spans(std::span<std::int32_t> out) const {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < lengths.size(); begin += up(lengths[i], pad), ++i) {
      out[2 * i] = static_cast<std::int32_t>(begin);
      out[2 * i + 1] = static_cast<std::int32_t>(begin + lengths[i]);
    }
  }
  /// [begin, end) of the sequence of each row, [0, 0) of a row of none: 2 * rows numbers, for as many rows as there is room (rows() or more).
  void write_reach(std::span<std::int32_t> out) const {
    std::fill(out.begin(), out.end(), 0);
    std::int64_t begin = 0;
    for (const std::int32_t length : lengths) {
      for (std::int64_t row = begin; row < begin + length; ++row) {
        out[static_cast<std::size_t>(2 * row)] = static_cast<std::int32_t>(begin);
        out[static_cast<std::size_t>(2 * row + 1)] = static_cast<std::int32_t>(begin + length);
      }
      begin += up(length, pad);
    }
  }
  /// Of each row, where in its sequence it is; 0 of a row of none. As many numbers as there are rows.
  void write_positions(std::span<std::int32_t> out) const {
    std::fill(out.begin(), out.end(), 0);
    std::int64_t begin = 0;
    for (const std::int32_t length : lengths) {
      for (std::int32_t i = 0; i < length; ++i) out[static_cast<std::size_t>(begin + i)] = i;
      begin += up(length, pad);
    }
  }

  /// Number `table` of plan::RaggedDesc::tables and spec::RaggedDim::Table.
  void write(std::size_t table, std::span<std::int32_t> out) const {
    if (table == 0) return write_reach(out);
    if (table == 1) return write_spans(out);
    write_positions(out);
  }
};

}  // namespace ccks
