// Generated sources: what ccks-gen writes for one program. Sources include the headers of ccks and instantiate; the
// logic stays there. Equal input gives equal bytes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codegen/plan_image.hpp"

namespace ccks::codegen {

struct EmitOptions {
  std::string device = "host";                                  // "host", or "cuda": worker.cu besides worker.cpp
  bool allow_inline = false;                                    // code of `custom` ops may go into the sources
  std::string spec_name;                                        // file name of the spec, without folders
  std::string spec_hash;                                        // content_hash of its text and includes
  std::vector<std::pair<std::string, std::int64_t>> constants;  // what --set changed
};

struct GeneratedFile {
  std::string path;  // relative to the output folder
  std::string text;  // the first line carries the marker of emit_write.hpp
};

/// Which instantiation each op runs, and their text.
struct Bodies {
  std::vector<std::uint16_t> of_op;
  std::vector<std::uint16_t> typical_of_op;  // where the op has its typical shape
  std::vector<std::uint16_t> groups_of_op;   // where it is kOpGroups
  std::string aliases;  // using Op0 = ...;
  std::string cases;    // of the switch over bodies
  std::string custom;   // structs with inline code
  struct Body {
    std::string type;    // "TypedOp<...>", or the name of its struct
    std::string custom;  // that struct
  };
  std::vector<Body> list;  // the same, one by one
  std::uint32_t scratch_bytes = 0;  // of a worker
  bool decides = false;             // some op has guards, or tiles that a report counts
  std::uint32_t rows_handed_on = 0; // rows_handed_on
  std::uint32_t routed_rows = 0;    // routed_rows
  std::size_t count = 0;
};
/// Files in the order of their names; the manifest lists the others.
Result<std::vector<GeneratedFile>> emit_sources(const spec::Program& program, const PlanImage& image,
                                                const EmitOptions& options);
/// The CUDA worker in units that are compiled apart and linked (ccks/worker/linked_ops.cuh): the loop, what it prefetches, each
/// body, and the switch between them. Only the switch belongs to this program; the others are the same wherever they occur. `queues`: the
/// loop can take part in ready queues, which arm gpu_queue needs and no other.
Result<std::vector<GeneratedFile>> emit_worker_units(const Bodies& bodies, bool queues = true);
/// Whether they have most of the shared memory that there is (worker::kCudaGroupedScratchBytes).
bool is_roomy(const Bodies& bodies);
/// Whether weights of one of them may come through a ring (wire::kOpStreams): those of a product, in 16 bits, where scratch leaves room for one.
bool may_stream(const Bodies& bodies);
/// Whether all bodies that may be handed values with tags take them (WorkerImage::cuda_tags).
bool find_tags(const Bodies& bodies);
/// Whether workers take rows by their tags (WorkerImage::cuda_row_tags): where a program, at its typical sizes, has products for that.
bool take_rows(const Bodies& bodies);
/// Whether relays have steps by chosen experts (WorkerImage::cuda_relay_experts): where a program, at its typical sizes, routes as many rows as relays have.
bool take_experts(const Bodies& bodies);
/// Of each product of a relay (WorkerImage::cuda_relay_rows).
std::uint32_t relay_rows(const Bodies& bodies);
/// Every file name that any version of emit_sources may return.
std::vector<std::string> generated_names();
/// Version of the generator, "0.1.0".
const char* generator_version();

// ---- parts, for emit_sources.cpp and tests
// ----------------------------------------------------------------------------

/// Whether bodies read shapes from the frame, or are made for one shape each: code for lanes in warps, which is then short. Where a
/// dim of the program changes an op's shape, it has two: one for any, and one for its typical shape.
enum class BodyShapes { read, fixed };
Result<Bodies> emit_bodies(const spec::Program& program, const PlanImage& image, bool allow_inline,
                           BodyShapes shapes = BodyShapes::read);
/// The template arguments of a ShapedOp that are an op's shape; `typical` where dims of the program change it. Empty where no
/// body takes it.
struct OpShape {
  std::string text;
  bool typical = false;
};
OpShape shape_of_op(const PlanImage& image, const plan::OpDesc& op);
/// Rows, one of them if that may be, of products whose weights may come through a ring and that multiply what others of as many rows make, at the program's typical sizes; 0: there are none
/// of up to wire::kMostRelayRows, or, of several rows, most stand apart from one another.
std::uint32_t rows_handed_on(const PlanImage& image);
/// Rows that the first route chooses experts for, at the program's typical sizes, of those that relays take (wire::kMostRelayRows, kMostChosenExperts, kMostRelayExperts); 0: there is none.
std::uint32_t routed_rows(const PlanImage& image);
/// Whether a body for groups of warps (ccks/worker/grouped_ops.hpp) takes the op, at some or (`always`) at all of its shapes.
struct TakesGroups {
  bool ever = false, always = false;
  std::uint32_t columns = 0;  // of a block, where all tiles but the last have the same at all shapes; 0: they have not
  std::uint32_t moves = 0;    // with columns, operands of the epilogue (bit i: argument i + 1) of which rows have their own
  bool blocks = false;        // with columns, tiles are more than a narrow product's, as kOpBlocks wants them, and all is of 16-bit floats
};
TakesGroups takes_groups(const PlanImage& image, const plan::OpDesc& op);
/// Whether the op is a matmul that norms its rows first.
bool norms_rows(const PlanImage& image, const plan::OpDesc& op);
/// Whether it is a matmul that turns heads.
bool turns_heads(const PlanImage& image, const plan::OpDesc& op);
/// Of a matmul or expert_matmul wire::kTwinDim; else 0.
std::int64_t twin_dim(const PlanImage& image, const plan::OpDesc& op);
/// The tables of scheduler.cpp by template hole.
std::map<std::string, std::string> emit_tables(const PlanImage& image, const Bodies& bodies);
std::string emit_manifest(const PlanImage& image, const EmitOptions& options, const std::vector<GeneratedFile>& files);
/// invalid_data where code of a `custom` op could reach beyond its function: unbalanced, unterminated, or with
/// directives.
Status check_inline_code(const std::string& code);

}  // namespace ccks::codegen
