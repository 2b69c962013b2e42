#include "detector_report.h"

namespace pkb::emulator::detector {

namespace {

const char* text_of(Operation operation) {
  static const char* const kTexts[] = {"read", "write", "atomic"};
  return kTexts[size_t(operation)];
}

const char* text_of(Order order) {
  static const char* const kTexts[] = {"weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc"};
  return kTexts[size_t(order)];
}

const char* text_of(Scope scope) {
  static const char* const kTexts[] = {"none", "cta", "cluster", "gpu", "sys"};
  return kTexts[size_t(scope)];
}

const char* text_of(Proxy proxy) {
  static const char* const kTexts[] = {"generic", "async", "tensormap", "host"};
  return kTexts[size_t(proxy)];
}

}  // namespace

bool Report::is_new(FindingKind kind, uint32_t first_site, uint32_t second_site, bool is_benign) {
  const auto found = numbers_.find({kind, first_site, second_site, is_benign});
  if (found == numbers_.end()) return true;
  if (found->second != kDropped) ++findings_[found->second].occurrences;
  return false;
}

Finding* Report::weak(FindingKind kind, uint32_t first_site, uint32_t second_site) {
  const auto found = numbers_.find({kind, first_site, second_site, false});
  if (found == numbers_.end() || found->second == kDropped) return nullptr;
  Finding& finding = findings_[found->second];
  return finding.finding_class == FindingClass::kWeakOrder && finding.occurrences <= kLooks ? &finding : nullptr;
}

void Report::add(Finding finding, uint32_t first_site, uint32_t second_site) {
  const bool is_kept = findings_.size() < most_;
  numbers_[{finding.kind, first_site, second_site, finding.finding_class == FindingClass::kBenign}] = is_kept ? findings_.size() : kDropped;
  if (!is_kept) {
    ++dropped_;
    return;
  }
  findings_.push_back(std::move(finding));
  if (found_) found_(describe(findings_.back()));
}

FoundAccess Report::describe_access(const Record& record) const {
  const Site& site = sites_[record.site];
  FoundAccess access;
  access.present = true;
  access.operation = text_of(site.operation);
  access.what = site.what;
  access.order = text_of(site.order);
  access.scope = text_of(effective_scope(site.order, site.scope));
  access.proxy = text_of(site.proxy);
  access.rank = agents_.rank_of(record.who);
  if (site.line) {
    if (site.line->file) access.file = site.line->file;
    access.line = site.line->line;
    if (site.line->outer_file) access.outer_file = site.line->outer_file;
    access.outer_line = site.line->outer_line;
  }
  Key warp = record.who;
  uint32_t lanes = record.lanes;
  if (kind_of(warp) == AgentKind::kChannel) {
    const ChannelInfo& channel = agents_.channel(warp);
    warp = channel.warp;
    if (channel.completion != Completion::kQuiet) lanes = channel.lanes;
  }
  if (kind_of(warp) == AgentKind::kWarp && !is_host_code(site)) {
    const BlockInfo& block = agents_.block_of(warp);
    access.kernel = agents_.grid(block.grid).kernel;
    access.is_on_default_stream = agents_.is_on_default_stream(block.grid);
    access.block = block.index;
    access.thread = int32_t((index_of(warp) - block.first_warp) * 32 + (lanes ? uint32_t(__builtin_ctz(lanes)) : 0));
  }
  return access;
}

void Report::describe_place(Finding& finding, uint64_t address, uint64_t bytes) const {
  finding.bytes = bytes;
  const Region* region = regions_.find(address);
  if (!region) {
    finding.region = "unknown";
    finding.offset = address;
    return;
  }
  finding.region = detector::text_of(region->kind);
  finding.tensor = region->name ? region->name : "";
  finding.owner = region->rank;
  finding.offset = address - region->address;
  if (region->element_bytes) finding.index = int64_t(finding.offset / region->element_bytes);
}

}  // namespace pkb::emulator::detector
