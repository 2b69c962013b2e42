// The C interface of the race detector: an observer for pkb_emu_observe (driver.h), and its findings as JSON
// (findings.h). pkb_emu_detector_create gives null where memory is short or struct_bytes is another version's.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PKB_EMU_API
#define PKB_EMU_API __attribute__((visibility("default")))
#endif

typedef struct pkb_emu_detector pkb_emu_detector;

typedef struct {
  uint32_t struct_bytes;     // sizeof(pkb_emu_detector_options)
  int32_t strict;            // 1: hold kernels to the letter of PTX's memory model, where GPUs are known to do more
  int32_t races;             // 1: find races and bytes that nobody wrote; 0: bounds, alignment, barriers, advice alone
  uint32_t max_findings;     // kept; 0: 64
  // Called at the first finding of each pair of lines, with its message; may call pkb_emu_stop. Null: none.
  void (*found)(void* user, const char* message);
  void* user;
} pkb_emu_detector_options;

PKB_EMU_API pkb_emu_detector* pkb_emu_detector_create(const pkb_emu_detector_options* options);
PKB_EMU_API void pkb_emu_detector_destroy(pkb_emu_detector* detector);

// The pkb::emulator::Observer* to give to pkb_emu_observe.
PKB_EMU_API void* pkb_emu_detector_observer(pkb_emu_detector* detector);

// How many findings there are: races and the like, not advice.
PKB_EMU_API uint64_t pkb_emu_detector_count(pkb_emu_detector* detector);

// All findings, advice and links as JSON (findings.h). The text lives until the next call or destroy.
PKB_EMU_API const char* pkb_emu_detector_json(pkb_emu_detector* detector);

#ifdef __cplusplus
}
#endif
