// What pkb::Comm is on the host of every device: addresses, groups, and what there is of each. Include "pkb/symm.h".
#pragma once

#include <cstdint>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#endif

#include "pkb/comm.h"

namespace pkb {

class HostComm : public CommData {
 public:
  // Rank r's counterpart of an address in this rank's segment.
  template <typename T>
  T* peer(T* own, int r) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own) - reinterpret_cast<uintptr_t>(segments[rank]) +
                                reinterpret_cast<uintptr_t>(segments[r]));
  }

  // Rank r's counterpart of a tensor that lies in symmetric memory (an argument or a preallocated output).
  template <typename T>
  T* peer(const tvm::ffi::TensorView& own, int r) const {
    return peer(static_cast<T*>(own.data_ptr()), r);
  }

  // This rank's symmetric scratch, `offset` bytes in. comm.peer(comm.scratch<T>(), r) is rank r's.
  template <typename T>
  T* scratch(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(segments[rank] + scratch_offset + offset);
  }

  // The problem's group argument `index` (as in the signature); a negative index, which stands for None, is the world.
  Group group(int64_t index) const {
    check_group(index);
    if (index >= 0) return groups[index];
    Group world{world_size, rank, {}};
    for (int r = 0; r < world_size; ++r) world.ranks[r] = r;
    return world;
  }

 protected:
  // A word behind the last one is that of a barrier, which would end too early.
  static void check_slot(int slot) {
    if (slot < 0 || slot >= kUserSignals) TVM_FFI_THROW(IndexError) << "signal word " << slot << ", of 0 .. " << kUserSignals - 1;
  }

  void check_rank(int r) const {
    if (r < 0 || r >= world_size) TVM_FFI_THROW(IndexError) << "rank " << r << ", of 0 .. " << world_size - 1;
  }

  void check_group(int64_t index) const {
    if (index >= num_groups) TVM_FFI_THROW(IndexError) << "group " << index << ", of " << num_groups;
  }
};

}  // namespace pkb
