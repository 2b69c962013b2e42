#include "detector.h"

#include <memory>
#include <new>
#include <string>

#include "detector_observer.h"

struct pkb_emu_detector {
  std::unique_ptr<pkb::emulator::detector::Detector> detector;
  std::string json;
};

namespace {

constexpr uint32_t kMostFindings = 64;

}  // namespace

pkb_emu_detector* pkb_emu_detector_create(const pkb_emu_detector_options* options) {
  if (!options || options->struct_bytes != sizeof(pkb_emu_detector_options)) return nullptr;
  try {
    auto of = std::make_unique<pkb_emu_detector>();
    const auto found = options->found;
    void* const user = options->user;
    std::function<void(const std::string&)> on_finding;
    if (found) on_finding = [=](const std::string& message) { found(user, message.c_str()); };
    const uint32_t most = options->max_findings ? options->max_findings : kMostFindings;
    of->detector = std::make_unique<pkb::emulator::detector::Detector>(options->races != 0, options->strict != 0, most, std::move(on_finding));
    return of.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void pkb_emu_detector_destroy(pkb_emu_detector* detector) { delete detector; }

void* pkb_emu_detector_observer(pkb_emu_detector* detector) {
  return static_cast<pkb::emulator::Observer*>(detector->detector.get());
}

uint64_t pkb_emu_detector_count(pkb_emu_detector* detector) { return detector->detector->count(); }

const char* pkb_emu_detector_json(pkb_emu_detector* detector) {
  detector->json = pkb::emulator::detector::to_json(detector->detector->report());
  return detector->json.c_str();
}
