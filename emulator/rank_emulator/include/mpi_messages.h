// Messages between two ranks, of mpi.h ("MPI: A Message-Passing Interface Standard", Point-to-Point Communication). A message is
// sent when its sender calls, and copied to its receiver's buffer when that waits: sends do not wait for receives, as small
// messages do, but for MPI_Ssend and MPI_Issend. Each rank has one buffer for each message, of the host or of the GPU.
#pragma once

#include <sched.h>
#include <stdio.h>

struct pkb_mpi_request {
  bool is_send, is_synchronous, is_over;
  unsigned long long number;
  void* buffer;
  size_t bytes;
  std::vector<char> content;  // that has been sent
  char why[64];               // of a wait
};
typedef pkb_mpi_request* MPI_Request;
#define MPI_REQUEST_NULL ((MPI_Request)0)

namespace pkb_mpi {

inline void describe(char (&why)[64], const char* name, const char* direction, int peer, int tag) {
  char from[24] = "any rank", tagged[24] = "any tag";
  if (peer != MPI_ANY_SOURCE) snprintf(from, sizeof from, "rank %d", peer);
  if (tag != MPI_ANY_TAG) snprintf(tagged, sizeof tagged, "tag %d", tag);
  snprintf(why, sizeof why, "%s %s %s, %s", name, direction, from, tagged);
}

inline bool is_peer(int peer) { return peer >= 0 && peer < pkb_emu_rank_count(); }

inline int fail(const char* name, const char* problem) {
  char text[160];
  snprintf(text, sizeof text, "%s: %s", name, problem);
  return pkb_emu_fail(text), MPI_ERR_OTHER;
}

inline int begin_send(const char* name, const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, bool is_synchronous, MPI_Request* request) {
  if (tag < 0) return fail(name, "a message has a tag of 0 or more");
  if (to != MPI_PROC_NULL && !is_peer(to)) return fail(name, "there is no such rank");
  auto* const made = *request = new pkb_mpi_request{true, is_synchronous, to == MPI_PROC_NULL, 0, const_cast<void*>(from), size_t(count) * bytes_of(type), {}, {}};
  describe(made->why, name, "to", to, tag);
  if (made->is_over) return MPI_SUCCESS;
  made->content.resize(made->bytes);
  copy(made->content.data(), from, made->bytes);
  const PkbEnvelope envelope{to, tag, comm, made->bytes};
  made->number = pkb_emu_send(&envelope, made->content.data(), is_synchronous);
  return made->number ? MPI_SUCCESS : MPI_ERR_OTHER;
}

inline int begin_receive(const char* name, void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  if (tag < 0 && tag != MPI_ANY_TAG) return fail(name, "a message has a tag of 0 or more");
  if (from != MPI_PROC_NULL && from != MPI_ANY_SOURCE && !is_peer(from)) return fail(name, "there is no such rank");
  auto* const made = *request = new pkb_mpi_request{false, false, from == MPI_PROC_NULL, 0, to, size_t(count) * bytes_of(type), {}, {}};
  describe(made->why, name, "from", from, tag);
  if (made->is_over) return MPI_SUCCESS;
  const PkbEnvelope wanted{from, tag, comm, 0};
  made->number = pkb_emu_expect(&wanted);
  return made->number ? MPI_SUCCESS : MPI_ERR_OTHER;
}

// Completes a request, or says MPI_ERR_PENDING where it does not wait; `is_blocking`: its buffer has not been anybody else's.
inline int complete(MPI_Request* request, MPI_Status* status, bool waits, bool is_blocking = false) {
  MPI_Status unused;
  if (!status) status = &unused;
  pkb_mpi_request* const of = *request;
  *status = {of && !of->is_send ? MPI_PROC_NULL : MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_SUCCESS, 0};
  if (!of) return MPI_SUCCESS;
  if (of->is_send && !of->is_over) {
    const int sent = of->is_synchronous ? pkb_emu_sent(of->number, of->why, waits) : 1;
    if (sent != 1) return sent == 0 ? MPI_ERR_PENDING : MPI_ERR_OTHER;
    if (!is_blocking) {
      std::vector<char> now(of->bytes);
      copy(now.data(), of->buffer, of->bytes);
      if (now != of->content) return fail(of->why, "its buffer has other content by the time of the wait: the message may be read until then");
    }
  } else if (!of->is_over) {
    std::vector<char> content(of->bytes);
    PkbEnvelope found{0, 0, 0, of->bytes};
    const int come = pkb_emu_receive(of->number, of->why, waits, content.data(), &found);
    if (come != 1) return come == 0 ? MPI_ERR_PENDING : MPI_ERR_OTHER;
    if (found.bytes > of->bytes) return fail(of->why, "the message is longer than the buffer");
    copy(of->buffer, content.data(), found.bytes);
    *status = {found.peer, found.tag, MPI_SUCCESS, found.bytes};
  }
  delete of;
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

inline int send(const char* name, const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, bool is_synchronous) {
  MPI_Request request;
  const int status = begin_send(name, from, count, type, to, tag, comm, is_synchronous, &request);
  return status == MPI_SUCCESS ? complete(&request, nullptr, true, true) : status;
}

}  // namespace pkb_mpi

static inline int MPI_Send(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) { return pkb_mpi::send("MPI_Send", from, count, type, to, tag, comm, false); }
static inline int MPI_Ssend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) { return pkb_mpi::send("MPI_Ssend", from, count, type, to, tag, comm, true); }
static inline int MPI_Isend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) { return pkb_mpi::begin_send("MPI_Isend", from, count, type, to, tag, comm, false, request); }
static inline int MPI_Issend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) { return pkb_mpi::begin_send("MPI_Issend", from, count, type, to, tag, comm, true, request); }
static inline int MPI_Irecv(void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) { return pkb_mpi::begin_receive("MPI_Irecv", to, count, type, from, tag, comm, request); }
static inline int MPI_Recv(void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  MPI_Request request;
  const int begun = pkb_mpi::begin_receive("MPI_Recv", to, count, type, from, tag, comm, &request);
  return begun == MPI_SUCCESS ? pkb_mpi::complete(&request, status, true) : begun;
}
static inline int MPI_Wait(MPI_Request* request, MPI_Status* status) { return pkb_mpi::complete(request, status, true); }
static inline int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  for (int i = 0; i < count; ++i) {
    if (const int status = MPI_Wait(requests + i, statuses ? statuses + i : nullptr)) return status;
  }
  return MPI_SUCCESS;
}
// A loop over it lets others go on.
static inline int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  const int found = pkb_mpi::complete(request, status, false);
  *flag = found == MPI_SUCCESS;
  if (found == MPI_ERR_PENDING) sched_yield();
  return found == MPI_ERR_PENDING ? MPI_SUCCESS : found;
}
static inline int MPI_Waitany(int count, MPI_Request* requests, int* index, MPI_Status* status) {
  for (bool is_any = true; is_any;) {
    is_any = false;
    for (int i = 0; i < count; ++i) {
      if (!requests[i]) continue;
      is_any = true;
      const int found = pkb_mpi::complete(requests + i, status, false);
      if (found != MPI_ERR_PENDING) return *index = i, found;
    }
    if (is_any) sched_yield();
  }
  return *index = MPI_UNDEFINED, MPI_SUCCESS;
}
static inline int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status) {
  char why[64];
  pkb_mpi::describe(why, "MPI_Probe", "from", from, tag);
  const PkbEnvelope wanted{from, tag, comm, 0};
  PkbEnvelope found;
  if (pkb_emu_probe(&wanted, why, 1, &found) != 1) return MPI_ERR_OTHER;
  if (status) *status = {found.peer, found.tag, MPI_SUCCESS, found.bytes};
  return MPI_SUCCESS;
}
static inline int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  const PkbEnvelope wanted{from, tag, comm, 0};
  PkbEnvelope found;
  const int come = pkb_emu_probe(&wanted, "MPI_Iprobe", 0, &found);
  *flag = come == 1;
  if (come == 1 && status) *status = {found.peer, found.tag, MPI_SUCCESS, found.bytes};
  if (come == 0) sched_yield();
  return come < 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
}
static inline int MPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count) {
  const size_t each = pkb_mpi::bytes_of(type);
  return *count = status->pkb_bytes % each ? MPI_UNDEFINED : int(status->pkb_bytes / each), MPI_SUCCESS;
}
static inline int MPI_Sendrecv(const void* from, int count, MPI_Datatype type, int to_rank, int tag, void* to, int most, MPI_Datatype type_of_most, int from_rank, int from_tag, MPI_Comm comm, MPI_Status* status) {
  MPI_Request sent, received;
  if (const int begun = pkb_mpi::begin_receive("MPI_Sendrecv", to, most, type_of_most, from_rank, from_tag, comm, &received)) return begun;
  if (const int begun = pkb_mpi::begin_send("MPI_Sendrecv", from, count, type, to_rank, tag, comm, false, &sent)) return begun;
  const int over = pkb_mpi::complete(&sent, nullptr, true, true);
  return over == MPI_SUCCESS ? pkb_mpi::complete(&received, status, true) : over;
}
static inline int MPI_Sendrecv_replace(void* buffer, int count, MPI_Datatype type, int to_rank, int tag, int from_rank, int from_tag, MPI_Comm comm, MPI_Status* status) {
  return MPI_Sendrecv(buffer, count, type, to_rank, tag, buffer, count, type, from_rank, from_tag, comm, status);
}
