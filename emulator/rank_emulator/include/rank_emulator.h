// What host code may ask of the emulator that runs it, on a rank's thread. The headers nvshmem.h, nccl.h and mpi.h beside this
// one are made of it. All functions are collective unless something else is said: every rank calls them in the same order.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of the rank that calls; -1 on a thread of no rank. Not collective.
int pkb_emu_my_rank(void);
int pkb_emu_rank_count(void);

// Gathers `bytes` of each rank in `all`, in the order of ranks; with 0 bytes it is a barrier of the hosts. What hosts knew
// before it, such as the end of a stream that they have waited for, all know afterwards. `name` is what the program called,
// for messages. 0, or -1: the run has ended.
int pkb_emu_exchange(const char* name, const void* mine, void* all, size_t bytes);

// What kernels of the rank have put and got by functions that do not wait, as far as the calling thread knows of them, is
// complete. Not collective.
void pkb_emu_quiet(void);

// ---- messages between two hosts; not collective ----
// Of a message, and of those that are wanted: any peer, any tag where these are below 0. Contexts keep messages apart.
typedef struct {
  int peer, tag, context;
  size_t bytes;
} PkbEnvelope;
// Sends at once, and keeps a copy. Messages of a sender that fit are received in their order. Returns its number, which
// `pkb_emu_sent` takes once where `is_awaited` is not 0; what the sender knew the receiver knows afterwards.
unsigned long long pkb_emu_send(const PkbEnvelope* to, const void* content, int is_awaited);
// Whether somebody has asked for the message: 1 if so, 0 if not and it does not wait, -1: the run has ended.
int pkb_emu_sent(unsigned long long number, const char* why, int waits);
// Asks for a message; those that fit are given in the order of the calls. Returns its number, which `pkb_emu_receive` takes
// once: 1 and the message, which is copied where it fits into `found->bytes`, else as above.
unsigned long long pkb_emu_expect(const PkbEnvelope* wanted);
int pkb_emu_receive(unsigned long long number, const char* why, int waits, void* to, PkbEnvelope* found);
// A message that has come and nobody has asked for: 1 and its envelope, else as above.
int pkb_emu_probe(const PkbEnvelope* wanted, const char* why, int waits, PkbEnvelope* found);

// Ends the run: the program is wrong, as the text says. Not collective.
void pkb_emu_fail(const char* text);

// ---- of a process with several GPUs; not collective ----
// GPUs that the process sees: 1 where each rank is a process.
int pkb_emu_gpu_count(void);
// An exchange of `members` threads that have a number in common, such as one of pkb_emu_unique; `member` counts from 0.
int pkb_emu_meet(unsigned long long group, int members, int member, const char* name, const void* mine, void* all, size_t bytes);
// Waits until as many threads have come as the group has members; it orders nothing.
int pkb_emu_await(unsigned long long group, int members, const char* why);
unsigned long long pkb_emu_unique(void);
// Whether kernels that the calling thread launches from now on have access to all GPUs' memory, as those of a library that
// sees to it; returns what it was before.
int pkb_emu_reach_peers(int reaches);

// Memory at the same offset of each rank's symmetric heap; null: the heap is too small. `alignment` is a power of two.
void* pkb_emu_symmetric_allocate(const char* name, size_t bytes, size_t alignment);
int pkb_emu_symmetric_free(const char* name, void* pointer);
// Where a rank's symmetric heap begins, and its size. Not collective.
void* pkb_emu_symmetric_base(int rank);
size_t pkb_emu_symmetric_bytes(void);

// An address of the calling rank that stands for the same place on all ranks, of these many bytes at an address of each, in
// instructions of multicast (multimem); and its end. Not collective.
void* pkb_emu_multicast(char* const* of_ranks, size_t bytes);
void pkb_emu_end_multicast(void* address);

// Ends the run: the emulator does not model what the program has asked for. Not collective.
void pkb_emu_refuse(const char* what);

#ifdef __cplusplus
}
#endif
