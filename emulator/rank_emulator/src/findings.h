// What the race detector finds, as typed records, and their JSON form for the Python side.
//
// The JSON is one object:
//   {"schema_version": 2, "findings": [Finding ...], "advice": [Advice ...], "links": [Link ...], "dropped": int}
// A Finding has the fields of the struct below by the same names; enumerations are texts (see the lists next to each),
// an Access that is missing is null, "message" is `describe()`, one line for the agent, and "exposure" is `exposure_of()`,
// null where empty. Unknown texts and numbers are null (line 0, file "", rank -1 never appear).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pkb::emulator::detector {

enum class FindingKind : uint8_t {
  kRace,                 // "race"
  kOutOfBounds,          // "out_of_bounds"
  kUninitialisedRead,    // "uninitialised_read"
  kMisaligned,           // "misaligned"
  kDivergentBarrier,     // "divergent_barrier"
  kMbarrierLeak,         // "mbarrier_leak"
  kBulkCopyLeak,         // "bulk_copy_leak"
  kEndedBlock,           // "ended_block"
};

// What follows from a race.
enum class FindingClass : uint8_t {
  kUnsynchronised,       // "unsynchronised": no flag or barrier leads from one access to the other
  kWeakOrder,            // "weak_order": a flag does, without the release, acquire, scope or proxy that PTX asks for
  kBenign,               // "benign": both store the same value
};

// Why two accesses are not ordered: what would have ordered them.
enum class MissingEdge : uint8_t {
  kNone,                 // "none": no edge is missing
  kArrival,              // "arrival": nothing orders a rank's arrival before a peer's access
  kDeparture,            // "departure": nothing orders a peer's access before a rank's departure
  kNoSynchronisation,    // "no_synchronisation": no flag or barrier leads from the first access to the second
  kScope,                // "scope": a flag's scope does not contain the other thread; edge_from, edge_to are the flag's accesses
  kFenceScope,           // "fence_scope": the same of a fence beside a relaxed flag
  kRelease,              // "release": the flag is written without release, and its thread executes no fence after the data
  kAcquire,              // "acquire": the flag is read without acquire, and its thread executes no fence after it
  kWeakFlag,             // "weak_flag": a flag is accessed by a plain load or store
  kMixedSize,            // "mixed_size": two strong accesses that overlap in part only
  kProxyFence,           // "proxy_fence": ordered, but for fence.proxy.async on the way
  kCompletion,           // "completion": an asynchronous copy or wgmma whose completion nobody waited for
  kNonCoherent,          // "non_coherent": ld.global.nc of bytes that were written while the kernel ran
  kBlockBarrier,         // "block_barrier": two warps of one block without bar.sync between
  kWarpBarrier,          // "warp_barrier": two lanes of one warp without __syncwarp between
  kStreamOrder,          // "stream_order": two streams of one rank, or a stream and its host thread
  kEqualStores,          // "equal_stores": two plain stores of the same value
  kQuiet,                // "quiet": a put or get of a library that its PE has not waited for by quiet
  kDelivery,             // "delivery": a put, and a flag that is stored behind it without the library's fence
  kGridDependency,       // "grid_dependency": a kernel that may overlap the one before it in its stream (programmatic dependent launch)
};

// What host code is called that touches memory of GPUs and hosts.
constexpr char kHostCode[] = "host code";

// One side of a finding.
struct FoundAccess {
  bool present = false;
  std::string operation;        // "read", "write", "atomic", "fence"
  std::string what;             // opcode, or the stream operation: "st.relaxed.gpu.global.u64", "arrival", "cudaMemcpyAsync"
  std::string order;            // "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc"
  std::string scope;            // "none", "cta", "cluster", "gpu", "sys"
  std::string proxy;            // "generic", "async", "tensormap", "host"
  int rank = -1;                // of the thread or stream
  std::string kernel;           // empty for stream operations
  bool is_on_default_stream = false;  // the kernel was launched there; not in the JSON form
  int64_t block = -1;           // linear index in the grid; -1 for stream operations
  int32_t thread = -1;          // linear index in the block; lane = thread % 32; -1 for stream operations
  std::string file;             // empty where not known
  int32_t line = 0;
  std::string outer_file;       // the outermost caller that it was inlined into
  int32_t outer_line = 0;
};

struct Finding {
  FindingKind kind = FindingKind::kRace;
  FindingClass finding_class = FindingClass::kUnsynchronised;  // "class", null for findings that are no races
  FoundAccess first;            // earlier in this execution; absent where a finding has one access
  FoundAccess second;
  std::string region;           // "argument", "output", "scratch", "signals", "segment", "allocation", "host", "global_variable",
                                // "shared", "local", "constant", "parameters", "unknown"
  std::string tensor;           // name of the region
  int owner = -1;               // rank whose memory it is; -1: not known
  uint64_t offset = 0;          // of the first byte that both touch, in the region
  int64_t index = -1;           // of its element; -1 where the size of elements is not known
  uint64_t bytes = 0;           // that both touch
  MissingEdge missing = MissingEdge::kNone;
  FoundAccess edge_from;        // the flag's store (or fence) and load that fail to make the edge; absent where there are none
  FoundAccess edge_to;
  int64_t call = -1;            // call of the second access's rank that it fell into, as pkb_emu_arrival numbers them
  uint64_t occurrences = 1;     // pairs of accesses with the same two lines and kind
};

// Bytes that one access moves needlessly, by source line.
struct Advice {
  std::string kind;             // "uncoalesced" (32-byte sectors of global memory), "bank_conflicts" (shared memory)
  std::string kernel;
  std::string what;             // opcode
  std::string file;
  int32_t line = 0;
  uint64_t accesses = 0;        // warp instructions
  uint64_t actual = 0;          // sectors, or passes over shared memory, that they took
  uint64_t least = 0;           // that the same bytes need
};

// Bytes that went from the memory of one rank to another rank's threads or the other way.
struct Link {
  int rank = 0;                 // who accessed
  int owner = 0;                // whose memory
  int64_t call = 0;             // of `rank`
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

struct FindingReport {
  std::vector<Finding> findings;
  std::vector<Advice> advice;
  std::vector<Link> links;
  uint64_t dropped = 0;         // findings beyond the most that are kept
};

const char* text_of(FindingKind kind);
const char* text_of(FindingClass finding_class);
const char* text_of(MissingEdge edge);

// What a GPU would have to do for the outputs to show a race; empty for other findings.
std::string exposure_of(const Finding& finding);

// One line: what, where, both accesses with their source lines, and the edge that is missing with the remedy.
std::string describe(const Finding& finding);
// "rank 1's write by `st.global.u32` (kernel.cu:12)".
std::string describe(const FoundAccess& access);
std::string describe(const Advice& advice);
std::string to_json(const FindingReport& report);

}  // namespace pkb::emulator::detector
