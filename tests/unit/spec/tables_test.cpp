// What is written in more than one place says the same in each: codes, keys of ops, the JSON Schema, the manual.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "spec/ops.hpp"
#include "tests/paths.hpp"

namespace ccks::spec {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(CCKS_SOURCE_DIR "/spec/" + path);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

TEST(Tables, EveryCodeIsInTheManualAndViceVersa) {
  const auto in_sources = matches(read("codes.hpp"), "\"(CCKS[0-9]{3})\"");
  EXPECT_GT(in_sources.size(), 40u);
  EXPECT_EQ(in_sources, matches(read("README.md"), "\\| (CCKS[0-9]{3}) \\|"));
}

TEST(Tables, EveryCodeIsUsedAndTested) {
  const auto names = matches(read("codes.hpp"), "Code (k[A-Za-z]+)\\{");
  std::string sources, tests;
  for (const char* file : {"blocks.cpp",    "blocks_while.cpp", "builder.cpp",      "builder_scalars.cpp", "counted.cpp", "diagnostics.cpp",
                           "dim_text.cpp",  "element_text.cpp", "include.cpp",         "op_reader.cpp",
                           "operand.cpp",   "ops.cpp",          "ops_attention.cpp",   "ops_elementwise.cpp",
                           "ops_index.cpp", "ops_matrix.cpp",   "ops_moe.cpp",         "ops_view.cpp",
                           "out.cpp",       "parse.cpp",        "sections.cpp",        "text_check.cpp",
                           "view.cpp",      "yaml.cpp"})
    sources += read(file);
  const auto used = matches(sources, "code::(k[A-Za-z]+)");
  EXPECT_EQ(names, used);
  tests = read("../tests/unit/spec/diagnostics_test.cpp") + read("../tests/unit/spec/language_test.cpp");
  EXPECT_EQ(matches(read("codes.hpp"), "\"(CCKS[0-9]{3})\""), matches(tests, "\"(CCKS[0-9]{3})\""));
}

std::set<std::string> keys_of(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.at("properties").items()) keys.insert(key);
  return keys;
}

TEST(Tables, TheSchemaKnowsTheKeysOfTheParser) {
  const auto schema = nlohmann::json::parse(read("schema/ccks-1.schema.json"));
  const auto& defs = schema.at("$defs");
  std::set<std::string> listed;
  for (const auto& one : defs.at("op").at("oneOf")) listed.insert(one.at("$ref").get<std::string>().substr(8));
  std::set<std::string> known;
  for (const OpForm& form : op_forms()) {
    std::set<std::string> keys(form.keys.begin(), form.keys.end());
    keys.insert({"op", "name"});
    if (std::string(form.name) != "report") keys.insert("out");
    ASSERT_TRUE(defs.contains(std::string("op_") + form.name)) << form.name;
    EXPECT_EQ(keys_of(defs.at(std::string("op_") + form.name)), keys) << form.name;
    known.insert(std::string("op_") + form.name);
  }
  EXPECT_EQ(listed, known);
  EXPECT_EQ(keys_of(schema), (std::set<std::string>{"ccks", "program", "dtype", "dims", "tensors", "ops", "include"}));
  EXPECT_EQ(keys_of(defs.at("tensor")), (std::set<std::string>{"shape", "dtype", "kind", "from", "init"}));
  EXPECT_EQ(keys_of(defs.at("symbol")), (std::set<std::string>{"range", "default"}));
}

TEST(Tables, TheManualNamesEveryOpAndKey) {
  const std::string manual = read("README.md");
  for (const OpForm& form : op_forms()) {
    EXPECT_NE(manual.find(form.name), std::string::npos) << form.name;
    for (const std::string& key : form.keys) EXPECT_NE(manual.find(key), std::string::npos) << form.name << " " << key;
  }
}

TEST(Tables, TheManualsProgramIsTheExample) {
  const auto r = parse_text(matches(read("README.md"), "```yaml\n(ccks: 1[^`]*)```").empty()
                                ? ""
                                : *matches(read("README.md"), "```yaml\n(ccks: 1[^`]*)```").begin(),
                            "manual.yaml");
  EXPECT_TRUE(r.ok && r.diagnostics.empty()) << format_diagnostics(r);
  EXPECT_EQ(r.program.ops.size(), parse_file(CCKS_SOURCE_DIR "/spec/examples/mlp.yaml").program.ops.size());
}

TEST(Tables, TheSchemaAcceptsTheExamples) {
  if (std::system("python3 -c 'import jsonschema, yaml' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "python3 with jsonschema and yaml is not installed";
  const std::string script =
      "import glob, json, sys, yaml, jsonschema\n"
      "root = sys.argv[1]\n"
      "schema = json.load(open(root + '/spec/schema/ccks-1.schema.json'))\n"
      "validator = jsonschema.Draft202012Validator(schema)\n"
      "files = glob.glob(root + '/spec/examples/*.yaml')\n"
      "bad = [(f, e.message) for f in files for e in validator.iter_errors(yaml.safe_load(open(f)))]\n"
      "print(bad)\n"
      "wrong = yaml.safe_load(open(files[0]))\n"
      "wrong['ops'][0]['unheard_of'] = 1\n"
      "sys.exit(1 if bad or len(files) < 7 or validator.is_valid(wrong) else 0)\n";
  const std::string path = testing::TempDir() + "ccks_schema_check.py";
  std::ofstream(path) << script;
  EXPECT_EQ(std::system(("python3 " + path + " '" CCKS_SOURCE_DIR "'").c_str()), 0);
}

TEST(Tables, OpKindNamesFollowTheVariant) {
  EXPECT_STREQ(op_kind_name(OpKind::map), "map");
  EXPECT_STREQ(op_kind_name(OpKind(OpAttrs(RouteAttrs{}).index())), "route");
  EXPECT_STREQ(op_kind_name(OpKind(OpAttrs(SelectAttrs{}).index())), "select");
  EXPECT_STREQ(op_kind_name(OpKind(OpAttrs(CustomAttrs{}).index())), "custom");
}

}  // namespace
}  // namespace ccks::spec
