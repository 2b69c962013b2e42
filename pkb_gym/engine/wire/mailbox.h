// What passes between a GPU and its trusted server at a handover, in memory of the host that both map.
//
// A handover is what happens on a rank's stream between two calls: the departure of the one (samples of its outputs are
// copied to receipts, and in some blocks poisoned, as its withheld argument lines are) and the arrival of the next (its
// withheld argument lines get their values, samples of its outputs are poisoned). The kernel reports to the server that
// it is there, and only then the server sends it the indices of these lines, and their contents.
#pragma once

#include <cstdint>

namespace pkb_handover {

constexpr int kLineBytes = 64;
constexpr int kLineWords = kLineBytes / 8;
constexpr int kArrivals = 24;     // lines of arguments, of one call
constexpr int kPoisons = 16;      // lines of outputs that are poisoned before it
constexpr int kReceipts = 24;     // lines of outputs that are copied after it
constexpr int kEntries = 256;     // 8-byte words of a message, one for each thread of the kernel

// Words of a message: the four counts, a byte each, and in the bit above whether outputs are taken away; indices of lines,
// two in a word; contents of the arriving lines.
constexpr int kReceiptWord = 2;
constexpr int kWithdrawalWord = kReceiptWord + kReceipts / 2;
constexpr int kPoisonWord = kWithdrawalWord + kArrivals / 2;
constexpr int kArrivalWord = kPoisonWord + kPoisons / 2;
constexpr int kValueWord = kArrivalWord + kArrivals / 2;
static_assert(kValueWord % 2 == 0 && kValueWord + kArrivals * kLineWords <= kEntries);

// Half a word and the number of the handover that it is for, twice. Each half is stored at once, so that a reader sees
// whether it has come.
struct alignas(16) Entry {
  uint32_t low, low_sequence, high, high_sequence;
};

struct alignas(4096) Mailbox {
  uint64_t reached;               // number of the last handover that the GPU has reached; written by it
  uint64_t unused[7];
  Entry message[2][kEntries];     // of handover `sequence`: [sequence % 2]
  uint8_t receipts[2][kReceipts][kLineBytes];  // likewise; written by the GPU
};

// In the control page of each rank's segment: a word for each rank that meets it; as MEETING_OFFSET of wire/abi.py.
constexpr uint64_t kMeetingOffset = 512;

constexpr uint8_t kPoisonByte = 0xf5;  // a large negative number in every float format

}  // namespace pkb_handover
