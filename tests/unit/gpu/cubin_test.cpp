// What a cubin says of op bodies before it is loaded.
#include "gpu/cubin.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#if defined(CCKS_HAVE_CUDA)
extern "C" const unsigned char ccks_image_graph_bodies[], ccks_image_graph_bodies_end[];
#endif

namespace ccks::test {
namespace {

struct Section {
  std::string name;
  std::string content;  // or, of shared memory, as many bytes as that has
  Elf64_Word type = SHT_PROGBITS, link = 0;
};

void append(std::string& to, const auto& value) { to.append(reinterpret_cast<const char*>(&value), sizeof(value)); }

/// An ELF file: head, contents, table of sections, of which the last holds the names.
std::vector<std::byte> elf(std::vector<Section> sections) {
  sections.push_back({".shstrtab", {}});
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> table(sections.size());
  for (std::size_t i = 0; i < sections.size(); ++i) {
    table[i].sh_name = static_cast<Elf64_Word>(names.size());
    table[i].sh_type = sections[i].type;
    table[i].sh_link = sections[i].link;
    names += sections[i].name + '\0';
  }
  sections.back().content = names;
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_shentsize = sizeof(Elf64_Shdr);
  head.e_shnum = static_cast<Elf64_Half>(sections.size());
  head.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string contents;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    table[i].sh_offset = sizeof(head) + contents.size();
    table[i].sh_size = sections[i].content.size();
    contents += sections[i].content;
  }
  head.e_shoff = sizeof(head) + contents.size();
  std::string out;
  append(out, head);
  out += contents;
  for (const Elf64_Shdr& each : table) append(out, each);
  const auto* bytes = reinterpret_cast<const std::byte*>(out.data());
  return {bytes, bytes + out.size()};
}

/// As ptxas writes it: some function's registers, then the kernel's registers and stack.
std::vector<Section> bodies(std::uint32_t registers, std::uint32_t stack) {
  std::string symbols, info;
  for (const Elf64_Word name : {0u, 1u, 7u}) {
    Elf64_Sym symbol{};
    symbol.st_name = name;
    append(symbols, symbol);
  }
  const auto attribute = [&](std::uint8_t which, std::uint32_t of, std::uint32_t value) {
    append(info, std::uint8_t{4});
    append(info, which);
    append(info, std::uint16_t{8});
    append(info, of);
    append(info, value);
  };
  append(info, std::uint32_t{0x0101'5f03});  // one without a value of its own
  attribute(0x2f, 1, 255);
  attribute(0x2f, 2, registers);
  attribute(0x11, 2, 7);
  attribute(0x12, 2, stack);
  return {{".strtab", std::string("\0other\0ccks_bodies\0", 19)}, {".symtab", symbols, SHT_SYMTAB, 0}, {".nv.info", info}};
}

std::vector<Section> with(std::vector<Section> sections, Section more) {
  sections.push_back(std::move(more));
  return sections;
}

TEST(BodiesNeeds, StandInTheCubin) {
  const auto needs = gpu::bodies_needs(elf(with(bodies(86, 976), {".nv.shared.ccks_bodies", std::string(1024 + 512, '\0')})));
  ASSERT_TRUE(needs.ok()) << needs.status().to_string();
  ASSERT_TRUE(needs->has_value());
  EXPECT_EQ((*needs)->registers, 86u);
  EXPECT_EQ((*needs)->stack_bytes, 976u);
  EXPECT_EQ((*needs)->static_shared_bytes, 512u) << "beyond what the system has";
  const auto none = gpu::bodies_needs(elf(with(bodies(86, 976), {".nv.shared.ccks_bodies", std::string(1024, '\0')})));
  ASSERT_TRUE(none.ok() && none->has_value());
  EXPECT_EQ((*none)->static_shared_bytes, 0u);
}

/// Of the attributes' numbers above nothing is documented: a toolkit that writes others is found out here.
TEST(BodiesNeeds, StandInWhatPtxasWrites) {
#if defined(CCKS_HAVE_CUDA)
  const auto needs = gpu::bodies_needs(std::as_bytes(std::span(ccks_image_graph_bodies, ccks_image_graph_bodies_end)));
  ASSERT_TRUE(needs.ok()) << needs.status().to_string();
  ASSERT_TRUE(needs->has_value());
  EXPECT_GE((*needs)->registers, 24u) << "more than the least that ptxas gives";
  EXPECT_LE((*needs)->registers, 168u) << "CCKS_APART_REGISTERS";
  EXPECT_LT((*needs)->stack_bytes, 1024u);
  EXPECT_EQ((*needs)->static_shared_bytes, 0u);
#else
  GTEST_SKIP() << "built without nvcc";
#endif
}

TEST(BodiesNeeds, ConstantsAreRefusedUnlessTheyAreParametersOrEmpty) {
  for (const Section& fine : {Section{".nv.constant0.ccks_bodies", "parameters"}, Section{".nv.constant2.ccks_body", ""}, Section{".text.ccks_body", "code"}})
    EXPECT_TRUE(gpu::bodies_needs(elf(with(bodies(86, 0), fine))).ok()) << fine.name;
  for (const char* section : {".nv.constant2.ccks_body", ".nv.constant3", ".nv.constant4"}) {
    const Status refused = gpu::bodies_needs(elf(with(bodies(86, 0), {section, "12345678"}))).status();
    EXPECT_EQ(refused.code(), ErrorCode::invalid_data);
    EXPECT_NE(refused.message().find(section), std::string::npos) << refused.message();
  }
}

TEST(BodiesNeeds, WhatDoesNotSayThemOrIsCutOffIsRefused) {
  auto another = bodies(86, 0);
  another[0].content = std::string("\0other\0ccks_worker\0", 19);
  EXPECT_EQ(gpu::bodies_needs(elf(another)).status().code(), ErrorCode::invalid_data);
  const std::vector<std::byte> whole = elf(bodies(86, 0));
  for (std::size_t bytes = SELFMAG; bytes < whole.size(); ++bytes)
    EXPECT_EQ(gpu::bodies_needs(std::span(whole).first(bytes)).status().code(), ErrorCode::invalid_data) << bytes;
}

TEST(BodiesNeeds, OnlyADriverKnowsThemOfWhatIsNoElfFile) {
  for (const std::size_t bytes : {0u, 3u, 4u, 64u}) {
    const auto needs = gpu::bodies_needs(std::vector<std::byte>(bytes));
    EXPECT_TRUE(needs.ok() && !needs->has_value()) << bytes;
  }
}

}  // namespace
}  // namespace ccks::test
