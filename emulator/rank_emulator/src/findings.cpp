#include "findings.h"

#include <cstdio>

namespace pkb::emulator::detector {

namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      json += '\\';
      json += character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", unsigned(character));
      json += code;
    } else {
      json += character;
    }
  }
  return json + "\"";
}

std::string text_or_null(const std::string& text) { return text.empty() ? "null" : quoted(text); }

template <class Number>
std::string number_or_null(Number number, bool is_known) {
  return is_known ? std::to_string(number) : "null";
}

// `"name": value` pairs of an object.
class Object {
 public:
  Object& add(const char* name, const std::string& json) {
    text_ += (text_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + json;
    return *this;
  }
  std::string json() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string json_of(const FoundAccess& access) {
  if (!access.present) return "null";
  return Object()
      .add("operation", quoted(access.operation))
      .add("what", quoted(access.what))
      .add("order", quoted(access.order))
      .add("scope", quoted(access.scope))
      .add("proxy", quoted(access.proxy))
      .add("rank", number_or_null(access.rank, access.rank >= 0))
      .add("kernel", text_or_null(access.kernel))
      .add("block", number_or_null(access.block, access.block >= 0))
      .add("thread", number_or_null(access.thread, access.thread >= 0))
      .add("file", text_or_null(access.file))
      .add("line", number_or_null(access.line, access.line > 0))
      .add("outer_file", text_or_null(access.outer_file))
      .add("outer_line", number_or_null(access.outer_line, access.outer_line > 0))
      .json();
}

std::string json_of(const Finding& finding) {
  return Object()
      .add("kind", quoted(text_of(finding.kind)))
      .add("class", finding.kind == FindingKind::kRace ? quoted(text_of(finding.finding_class)) : "null")
      .add("message", quoted(describe(finding)))
      .add("exposure", text_or_null(exposure_of(finding)))
      .add("first", json_of(finding.first))
      .add("second", json_of(finding.second))
      .add("region", text_or_null(finding.region))
      .add("tensor", text_or_null(finding.tensor))
      .add("owner", number_or_null(finding.owner, finding.owner >= 0))
      .add("offset", std::to_string(finding.offset))
      .add("index", number_or_null(finding.index, finding.index >= 0))
      .add("bytes", std::to_string(finding.bytes))
      .add("missing", quoted(text_of(finding.missing)))
      .add("edge_from", json_of(finding.edge_from))
      .add("edge_to", json_of(finding.edge_to))
      .add("call", number_or_null(finding.call, finding.call >= 0))
      .add("occurrences", std::to_string(finding.occurrences))
      .json();
}

std::string json_of(const Advice& advice) {
  return Object()
      .add("kind", quoted(advice.kind))
      .add("message", quoted(describe(advice)))
      .add("kernel", text_or_null(advice.kernel))
      .add("what", quoted(advice.what))
      .add("file", text_or_null(advice.file))
      .add("line", number_or_null(advice.line, advice.line > 0))
      .add("accesses", std::to_string(advice.accesses))
      .add("actual", std::to_string(advice.actual))
      .add("least", std::to_string(advice.least))
      .json();
}

std::string json_of(const Link& link) {
  return Object()
      .add("rank", std::to_string(link.rank))
      .add("owner", std::to_string(link.owner))
      .add("call", number_or_null(link.call, link.call >= 0))
      .add("read_bytes", std::to_string(link.read_bytes))
      .add("written_bytes", std::to_string(link.written_bytes))
      .json();
}

template <class Item>
std::string json_of(const std::vector<Item>& items) {
  std::string json = "[";
  for (const Item& item : items) json += (json.size() > 1 ? ", " : "") + json_of(item);
  return json + "]";
}

// ---- texts ----

std::string place_of(const FoundAccess& access) {
  std::string text;
  if (!access.file.empty()) {
    text += access.file.substr(access.file.rfind('/') + 1) + ":" + std::to_string(access.line);
    if (!access.outer_file.empty() && (access.outer_file != access.file || access.outer_line != access.line)) {
      text += " called from " + access.outer_file.substr(access.outer_file.rfind('/') + 1) + ":" + std::to_string(access.outer_line);
    }
  }
  if (access.block >= 0) {
    text += (text.empty() ? "" : ", ") + std::string("block ") + std::to_string(access.block) + ", thread " + std::to_string(access.thread);
  }
  return text.empty() ? text : " (" + text + ")";
}

std::string name_of(const FoundAccess& access) {
  const std::string whose = access.rank >= 0 ? "rank " + std::to_string(access.rank) + "'s " : "";
  return whose + access.operation + " by `" + access.what + "`" + place_of(access);
}

std::string name_of_place(const Finding& finding) {
  std::string text = finding.owner >= 0 ? "rank " + std::to_string(finding.owner) + "'s " : "";
  const bool is_named = !finding.tensor.empty();
  text += is_named ? "`" + finding.tensor + "`" : finding.region + " memory";
  if (finding.index >= 0) text += "[" + std::to_string(finding.index) + "]";
  else text += " at byte " + std::to_string(finding.offset);
  return text;
}

std::string rank_text(const FoundAccess& access) { return "rank " + std::to_string(access.rank); }

// A wait observes the phase of an mbarrier; the other side may be named by its fence.
bool is_of_mbarrier(const Finding& finding) { return finding.edge_to.what.starts_with("mbarrier."); }

// The flag's two sides, for edges that were tried.
std::string flag_text(const Finding& finding) {
  const bool is_phase = is_of_mbarrier(finding);
  return std::string(is_phase ? "the phase that `" : "the flag that `") + finding.edge_from.what + "`" + place_of(finding.edge_from) +
         (is_phase ? " arrives at and `" : " stores and `") + finding.edge_to.what + "`" + place_of(finding.edge_to) +
         (is_phase ? " waits for" : " loads");
}

std::string needed_scope(const Finding& finding) {
  const FoundAccess &from = finding.edge_from, &to = finding.edge_to;
  if (is_of_mbarrier(finding)) return from.block != to.block ? ".cluster" : ".cta";
  return from.rank != to.rank ? ".sys" : from.block != to.block ? ".gpu" : ".cta";
}

std::string scope_text(const Finding& finding) {
  const FoundAccess &from = finding.edge_from, &to = finding.edge_to;
  const std::string needed = needed_scope(finding);
  const auto is_small = [&](const FoundAccess& access) {
    const std::string scope = "." + access.scope;
    if (scope == ".sys") return false;
    return needed == ".sys" || scope == ".cta" || scope == ".none";
  };
  const FoundAccess& small = is_small(from) ? from : to;
  const FoundAccess& other = is_small(from) ? to : from;
  const std::string access = small.operation == "read" ? "loads" : small.operation == "write" ? "stores" : "accesses";
  const std::string how = from.rank != to.rank ? " reaches it from another GPU" : " is of another block";
  if (is_of_mbarrier(finding)) {
    return flag_text(finding) + " is of two blocks, but `" + small.what + "`" + place_of(small) + " has ." + small.scope + " scope: use .cluster on both sides";
  }
  return rank_text(small) + " " + access + " the flag with ." + small.scope + " scope" + place_of(small) + ", but " +
         rank_text(other) + "'s `" + other.what + "`" + place_of(other) + how + ": use " + needed;
}

bool is_of_nvshmem(const FoundAccess& access) { return access.file.substr(access.file.rfind('/') + 1) == "nvshmem.h"; }

bool has_host_code(const Finding& finding) { return finding.first.what == kHostCode || finding.second.what == kHostCode; }

std::string remedy_of(const Finding& finding) {
  const FoundAccess& contract = finding.first.block < 0 ? finding.first : finding.second;
  const FoundAccess& thread = finding.first.block < 0 ? finding.second : finding.first;
  switch (finding.missing) {
    case MissingEdge::kNone: return "";
    case MissingEdge::kArrival:
      return "nothing tells " + rank_text(thread) + " that " + rank_text(contract) +
             "'s call has begun: wait for a signal of " + rank_text(contract) + " in this call first";
    case MissingEdge::kDeparture:
      return rank_text(contract) + "'s call ends before " + rank_text(thread) + " is done with its tensor: let " +
             rank_text(contract) + " wait for a signal of " + rank_text(thread) + " at the end of the call";
    case MissingEdge::kNoSynchronisation: return "no flag or barrier leads from the first to the second";
    case MissingEdge::kScope: return scope_text(finding);
    case MissingEdge::kFenceScope:
      return flag_text(finding) + " has a fence of too small a scope beside it: use " + needed_scope(finding);
    case MissingEdge::kRelease:
      if (is_of_nvshmem(finding.edge_from)) return flag_text(finding) + " may be delivered before the data: call nvshmem_fence() or nvshmem_quiet() between the data and the flag";
      return flag_text(finding) + (is_of_mbarrier(finding) ? " has an arrival" : " is stored") + " without release order, and its thread executes no fence of " + needed_scope(finding) +
             " scope after the data: use " + (is_of_mbarrier(finding) ? "mbarrier.arrive.release" : "st.release") + needed_scope(finding);
    case MissingEdge::kAcquire:
      return flag_text(finding) + (is_of_mbarrier(finding) ? " has a wait" : " is loaded") + " without acquire order, and its thread executes no fence of " +
             needed_scope(finding) + " scope after it: use " + (is_of_mbarrier(finding) ? "mbarrier.try_wait.acquire" : "ld.acquire") + needed_scope(finding);
    case MissingEdge::kWeakFlag:
      if (finding.edge_from.present) {
        return flag_text(finding) + " is stored by a plain store: use st.release" + needed_scope(finding);
      }
      return "one of them is strong and the other a plain access: make both relaxed or stronger, with a scope that holds both";
    case MissingEdge::kMixedSize: return "both are strong, but of different sizes: access the word as a whole on both sides";
    case MissingEdge::kEqualStores: return "both store the same value, so that their order makes no difference";
    case MissingEdge::kProxyFence:
      return "ordered, but in different proxies: execute fence.proxy.async after the first and before what orders them";
    case MissingEdge::kCompletion:
      return std::string(finding.first.proxy == "generic" ? "the second is asynchronous and was issued before the first"
                                                          : "the first is asynchronous") +
             ", and nobody has waited for its completion (mbarrier or wait_group)";
    case MissingEdge::kNonCoherent:
      if (finding.second.what.starts_with("tex.")) return "a texture may show stale bytes of what was written while its kernel runs: load them from memory";
      return "ld.global.nc may return stale bytes of what was written while its kernel runs: load without .nc (no __ldg, no "
             "const __restrict__)";
    case MissingEdge::kQuiet:
      return "the first is of a non-blocking operation, which is complete after nvshmem_quiet() or nvshmem_barrier() alone: call it before the second";
    case MissingEdge::kDelivery:
      return (finding.edge_from.present ? flag_text(finding) : "what leads from the first to the second") +
             " comes behind a put that may be delivered later: call nvshmem_fence() or nvshmem_quiet() between the put and the flag, or use put_signal";
    case MissingEdge::kBlockBarrier: return "two warps of one block without __syncthreads() between";
    case MissingEdge::kWarpBarrier: return "two lanes of one warp without __syncwarp() between";
    case MissingEdge::kGridDependency:
      return "the launch of kernel `" + finding.second.kernel + "` lets it overlap the kernels before it: call cudaGridDependencySynchronize() before what depends on them";
    case MissingEdge::kStreamOrder: {
      if (has_host_code(finding)) return "host code touches the memory of work that it has enqueued, and has not waited for: synchronise the stream or an event first";
      const FoundAccess& other = finding.first.is_on_default_stream ? finding.first : finding.second;
      if (finding.first.is_on_default_stream == finding.second.is_on_default_stream) return "two streams of one rank, which nothing orders: wait for an event";
      return "kernel `" + other.kernel + "` was launched on the default stream: use the call's stream";
    }
  }
  return "";
}

}  // namespace

const char* text_of(FindingKind kind) {
  static const char* const kTexts[] = {"race", "out_of_bounds", "uninitialised_read", "misaligned", "divergent_barrier",
                                       "mbarrier_leak", "bulk_copy_leak", "ended_block"};
  return kTexts[size_t(kind)];
}

const char* text_of(FindingClass finding_class) {
  static const char* const kTexts[] = {"unsynchronised", "weak_order", "benign"};
  return kTexts[size_t(finding_class)];
}

const char* text_of(MissingEdge edge) {
  static const char* const kTexts[] = {"none", "arrival", "departure", "no_synchronisation", "scope", "fence_scope",
                                       "release", "acquire", "weak_flag", "mixed_size", "proxy_fence", "completion",
                                       "non_coherent", "block_barrier", "warp_barrier", "stream_order",
                                       "equal_stores", "quiet", "delivery", "grid_dependency"};
  return kTexts[size_t(edge)];
}

std::string exposure_of(const Finding& finding) {
  if (finding.kind != FindingKind::kRace) return "";
  const bool is_read_first = finding.first.operation == "read";
  switch (finding.missing) {
    case MissingEdge::kNone: return "";
    case MissingEdge::kArrival: return "a rank has to run ahead of the stream of its peer, which begins the call later";
    case MissingEdge::kDeparture: return "a rank has to be slower at the end of the call than its peer";
    case MissingEdge::kNoSynchronisation: return "the thread of the second access has to run ahead of that of the first";
    case MissingEdge::kScope:
    case MissingEdge::kFenceScope:
      return "a cache inside the scope (L1 of a multiprocessor, L2 of a GPU) has to keep the flag or the data from the other thread";
    case MissingEdge::kRelease:
      return is_read_first ? "the store of the flag has to become visible before the first access has read"
                           : "the store of the flag has to become visible ahead of the first access, as from two parts of the L2";
    case MissingEdge::kAcquire: return "the reader has to perform the second access ahead of its load of the flag";
    case MissingEdge::kWeakFlag: return "the compiler or the GPU has to move, join or delay the plain access, as both may";
    case MissingEdge::kMixedSize: return "the GPU has to perform the wider access in parts";
    case MissingEdge::kProxyFence:
      return is_read_first ? "the asynchronous operation has to write before the load ahead of it has read"
                           : "the asynchronous operation has to run before the store ahead of it reaches its proxy";
    case MissingEdge::kCompletion: return "the asynchronous operation has to take longer than the way to the second access";
    case MissingEdge::kQuiet: return "the network or the copy has to take longer than the way to the second access";
    case MissingEdge::kDelivery: return "the flag has to overtake the put on its way, as on two queues of a network";
    case MissingEdge::kNonCoherent: return "the read-only cache has to hold the bytes from before the store";
    case MissingEdge::kBlockBarrier: return "the warp of the second access has to run ahead of that of the first";
    case MissingEdge::kWarpBarrier: return "the lanes of the warp have to diverge, as independent thread scheduling allows";
    case MissingEdge::kStreamOrder:
      if (has_host_code(finding)) return "the work has to begin later, or to take longer, than the host's way to its access";
      return "the second stream has to run ahead of the first";
    case MissingEdge::kGridDependency: return "the second kernel has to begin before the first ends";
    case MissingEdge::kEqualStores: return "a later version of the kernel has to store two values";
  }
  return "";
}

std::string describe(const FoundAccess& access) { return name_of(access); }

std::string describe(const Finding& finding) {
  static const char* const kRaces[] = {"race", "weak order", "benign race"};
  const std::string bytes = std::to_string(finding.bytes) + " bytes of " + name_of_place(finding);
  switch (finding.kind) {
    case FindingKind::kRace:
      return std::string(kRaces[size_t(finding.finding_class)]) + " on " + bytes + ": " + name_of(finding.first) + ", then " + name_of(finding.second) + "; " + remedy_of(finding);
    case FindingKind::kOutOfBounds:
      return "out of bounds: " + name_of(finding.second) + " touches " + std::to_string(finding.bytes) +
             " bytes that belong to no tensor, at byte " + std::to_string(finding.offset) + " of " +
             (finding.owner >= 0 ? "rank " + std::to_string(finding.owner) + "'s " : "") + "`" + finding.tensor + "`";
    case FindingKind::kUninitialisedRead: return "read of " + bytes + ", which nobody has written: " + name_of(finding.second);
    case FindingKind::kMisaligned: return "misaligned: " + name_of(finding.second) + " of " + bytes;
    case FindingKind::kDivergentBarrier:
      return "divergent barrier: `" + finding.second.what + "`" + place_of(finding.second) + " of " + rank_text(finding.second) +
             " is executed by a part of a warp: let all of its threads reach it together";
    case FindingKind::kMbarrierLeak:
      return "mbarrier leak: " + (finding.missing == MissingEdge::kCompletion ? "the next phase of an mbarrier of " + rank_text(finding.second) + " was over" : "a block of " + rank_text(finding.second) + " ended") +
             " before anybody waited for the bytes that `" + finding.second.what + "`" + place_of(finding.second) + " announces";
    case FindingKind::kBulkCopyLeak:
      return "bulk copy leak: a block of " + rank_text(finding.second) + " ended while `" + finding.second.what + "`" +
             place_of(finding.second) + " may still read its shared memory: let the thread that issues the copy commit it " +
             "(cp.async.bulk.commit_group) and execute cp.async.bulk.wait_group.read 0 before it ends";
    case FindingKind::kEndedBlock:
      return "ended block: " + name_of(finding.first) + " touches " + std::to_string(finding.bytes) +
             " bytes of the shared memory of block " + std::to_string(finding.second.block) + ", which may have ended by then" +
             place_of(finding.second) + ": let the cluster meet before its blocks end (cluster.sync())";
  }
  return "";
}

std::string describe(const Advice& advice) {
  const std::string place = advice.file.empty() ? "" : " (" + advice.file.substr(advice.file.rfind('/') + 1) + ":" + std::to_string(advice.line) + ")";
  const double share = advice.least ? double(advice.actual) / double(advice.least) : 0;
  char times[32];
  std::snprintf(times, sizeof times, "%.1f", share);
  if (advice.kind == "bank_conflicts") {
    return "bank conflicts: `" + advice.what + "`" + place + " passes over shared memory " + times + " times as often as its bytes need";
  }
  return "uncoalesced: `" + advice.what + "`" + place + " moves " + times + " times the sectors of 32 bytes that its bytes need";
}

std::string to_json(const FindingReport& report) {
  return Object()
      .add("schema_version", "2")
      .add("findings", json_of(report.findings))
      .add("advice", json_of(report.advice))
      .add("links", json_of(report.links))
      .add("dropped", std::to_string(report.dropped))
      .json();
}

}  // namespace pkb::emulator::detector
