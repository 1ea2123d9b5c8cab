#include "gpu/cubin.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace ccks::gpu {
namespace {

constexpr std::string_view kKernel = "ccks_bodies";
// Attributes of functions in section .nv.info (not documented; cubin_test.cpp reads what ptxas writes): a byte of form, one of attribute, 16 bits of size, then the symbol's index and the value.
constexpr std::uint8_t kFormSized = 4, kRegCount = 0x2f, kMinStackSize = 0x12;

// From sm_90 on a kernel that uses shared memory has so much of it set aside by the system, which stands in its section, too; a driver does not count it as the kernel's.
constexpr std::uint64_t kReservedShared = 1024;

template <class T>
std::optional<T> read_at(std::span<const std::byte> bytes, std::size_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}

class Cubin {
 public:
  explicit Cubin(std::span<const std::byte> bytes) : bytes_(bytes) {}

  /// False: it is cut off.
  bool open() {
    const auto head = read_at<Elf64_Ehdr>(bytes_, 0);
    if (!head || head->e_shentsize != sizeof(Elf64_Shdr)) return false;
    const auto names = read_at<Elf64_Shdr>(bytes_, head->e_shoff + head->e_shstrndx * sizeof(Elf64_Shdr));
    if (!names || !read_at<Elf64_Shdr>(bytes_, head->e_shoff + (head->e_shnum - 1) * sizeof(Elf64_Shdr))) return false;
    first_ = head->e_shoff;
    count_ = head->e_shnum;
    names_ = names->sh_offset;
    return true;
  }
  std::size_t sections() const { return count_; }
  Elf64_Shdr section(std::size_t i) const { return *read_at<Elf64_Shdr>(bytes_, first_ + i * sizeof(Elf64_Shdr)); }
  std::string_view name(const Elf64_Shdr& section) const { return text(names_ + section.sh_name); }
  std::span<const std::byte> content(const Elf64_Shdr& section) const {
    if (section.sh_offset > bytes_.size() || bytes_.size() - section.sh_offset < section.sh_size) return {};
    return bytes_.subspan(section.sh_offset, section.sh_size);
  }
  std::string_view symbol(const Elf64_Shdr& table, std::uint32_t i) const {
    const auto symbol = read_at<Elf64_Sym>(content(table), i * sizeof(Elf64_Sym));
    return symbol && table.sh_link < count_ ? text(section(table.sh_link).sh_offset + symbol->st_name) : std::string_view();
  }

 private:
  std::string_view text(std::size_t at) const {
    if (at >= bytes_.size()) return {};
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + at;
    return {begin, strnlen(begin, bytes_.size() - at)};
  }

  std::span<const std::byte> bytes_;
  std::size_t first_ = 0, count_ = 0, names_ = 0;
};

/// Of the kernel, from .nv.info; whether all that is wanted stands there.
bool find_attributes(const Cubin& cubin, std::span<const std::byte> info, const Elf64_Shdr& symbols, BodiesNeeds& needs) {
  bool has_registers = false, has_stack = false;
  for (std::size_t at = 0; at + 4 <= info.size();) {
    const auto form = *read_at<std::uint8_t>(info, at), attribute = *read_at<std::uint8_t>(info, at + 1);
    const auto size = *read_at<std::uint16_t>(info, at + 2);
    const auto of = read_at<std::uint32_t>(info, at + 4), value = read_at<std::uint32_t>(info, at + 8);
    if (form == kFormSized && size == 8 && of && value && cubin.symbol(symbols, *of) == kKernel) {
      if (attribute == kRegCount) has_registers = (needs.registers = *value, true);
      if (attribute == kMinStackSize) has_stack = (needs.stack_bytes = *value, true);
    }
    at += 4 + (form == kFormSized ? size : 0);
  }
  return has_registers && has_stack;
}

}  // namespace

Result<std::optional<BodiesNeeds>> bodies_needs(std::span<const std::byte> bytes) {
  if (bytes.size() < SELFMAG || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0) return std::optional<BodiesNeeds>();
  Cubin cubin(bytes);
  if (!cubin.open()) return {ErrorCode::invalid_data, "the op bodies' image is cut off"};
  std::optional<Elf64_Shdr> info, symbols;
  BodiesNeeds needs;
  for (std::size_t i = 0; i < cubin.sections(); ++i) {
    const Elf64_Shdr each = cubin.section(i);
    const std::string_view name = cubin.name(each);
    if (name == ".nv.info") info = each;
    if (each.sh_type == SHT_SYMTAB) symbols = each;
    if (name.starts_with(".nv.shared.") && each.sh_size > kReservedShared) needs.static_shared_bytes += static_cast<unsigned>(each.sh_size - kReservedShared);
    if (each.sh_size == 0 || !name.starts_with(".nv.constant") || name.starts_with(".nv.constant0.")) continue;
    return {ErrorCode::invalid_data, fmt::format("op bodies in an image of their own cannot have constant memory, and these have {} bytes ({})", each.sh_size, name)};
  }
  if (!info || !symbols || !find_attributes(cubin, cubin.content(*info), *symbols, needs))
    return {ErrorCode::invalid_data, fmt::format("the op bodies' image does not say what its kernel {} needs: was it made by CCKS_CUDA_APART_BODIES, and linked?", kKernel)};
  return std::optional(needs);
}

}  // namespace ccks::gpu
