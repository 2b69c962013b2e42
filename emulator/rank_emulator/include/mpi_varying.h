// Collectives of mpi.h whose parts differ in size ("MPI: A Message-Passing Interface Standard", Collective Communication), and
// those that reduce and scatter.
#pragma once

namespace pkb_mpi {

// All that ranks give, of different sizes: `starts` has where that of each begins, and the end.
inline int gather_varying(const char* name, const void* mine, size_t bytes, std::vector<char>* all, std::vector<size_t>* starts) {
  const auto ranks = static_cast<size_t>(pkb_emu_rank_count());
  std::vector<size_t> sizes(ranks);
  if (exchange(name, &bytes, sizes.data(), sizeof bytes) != MPI_SUCCESS) return MPI_ERR_OTHER;
  size_t most = 1;
  for (const size_t each : sizes) most = each > most ? each : most;
  std::vector<char> own(most), padded(most * ranks);
  copy(own.data(), mine, bytes);
  if (exchange(name, own.data(), padded.data(), most) != MPI_SUCCESS) return MPI_ERR_OTHER;
  starts->assign(1, 0);
  for (size_t rank = 0; rank < ranks; ++rank) {
    all->insert(all->end(), padded.begin() + long(rank * most), padded.begin() + long(rank * most + sizes[rank]));
    starts->push_back(all->size());
  }
  return MPI_SUCCESS;
}

}  // namespace pkb_mpi

static inline int MPI_Allgatherv(const void* mine, int count, MPI_Datatype type, void* all, const int* counts, const int* starts, MPI_Datatype type_of_all, MPI_Comm) {
  const size_t each = pkb_mpi::bytes_of(type_of_all), me = size_t(pkb_emu_my_rank());
  std::vector<char> given;
  std::vector<size_t> begins;
  const bool in_place = mine == MPI_IN_PLACE;
  const void* const from = in_place ? static_cast<char*>(all) + size_t(starts[me]) * each : mine;
  const size_t bytes = in_place ? size_t(counts[me]) * each : size_t(count) * pkb_mpi::bytes_of(type);
  if (pkb_mpi::gather_varying("MPI_Allgatherv", from, bytes, &given, &begins) != MPI_SUCCESS) return MPI_ERR_OTHER;
  for (size_t rank = 0; rank + 1 < begins.size(); ++rank) {
    if (begins[rank + 1] - begins[rank] > size_t(counts[rank]) * each) return pkb_emu_fail("MPI_Allgatherv: a rank gives more than another expects of it"), MPI_ERR_OTHER;
    pkb_mpi::copy(static_cast<char*>(all) + size_t(starts[rank]) * each, given.data() + begins[rank], begins[rank + 1] - begins[rank]);
  }
  return MPI_SUCCESS;
}
static inline int MPI_Gatherv(const void* mine, int count, MPI_Datatype type, void* all, const int* counts, const int* starts, MPI_Datatype type_of_all, int root, MPI_Comm comm) {
  if (pkb_emu_my_rank() == root) return MPI_Allgatherv(mine, count, type, all, counts, starts, type_of_all, comm);
  std::vector<char> given;
  std::vector<size_t> begins;
  return pkb_mpi::gather_varying("MPI_Allgatherv", mine, size_t(count) * pkb_mpi::bytes_of(type), &given, &begins);
}
static inline int MPI_Scatterv(const void* all, const int* counts, const int* starts, MPI_Datatype type, void* to, int count, MPI_Datatype type_of_mine, int root, MPI_Comm) {
  const auto ranks = static_cast<size_t>(pkb_emu_rank_count()), me = size_t(pkb_emu_my_rank());
  const size_t each = pkb_mpi::bytes_of(type);
  std::vector<char> parts, given;
  std::vector<size_t> begins, sizes(ranks), all_sizes(ranks * ranks);
  for (size_t rank = 0; rank < ranks && int(me) == root; ++rank) {
    sizes[rank] = size_t(counts[rank]) * each;
    parts.resize(parts.size() + sizes[rank]);
    pkb_mpi::copy(parts.data() + parts.size() - sizes[rank], static_cast<const char*>(all) + size_t(starts[rank]) * each, sizes[rank]);
  }
  if (pkb_mpi::exchange("MPI_Scatterv", sizes.data(), all_sizes.data(), ranks * sizeof(size_t)) != MPI_SUCCESS) return MPI_ERR_OTHER;
  if (pkb_mpi::gather_varying("MPI_Scatterv", parts.data(), parts.size(), &given, &begins) != MPI_SUCCESS) return MPI_ERR_OTHER;
  if (to == MPI_IN_PLACE) return MPI_SUCCESS;
  const size_t* const of_root = all_sizes.data() + size_t(root) * ranks;
  size_t at = begins[size_t(root)];
  for (size_t rank = 0; rank < me; ++rank) at += of_root[rank];
  if (of_root[me] > size_t(count) * pkb_mpi::bytes_of(type_of_mine)) return pkb_emu_fail("MPI_Scatterv: the root gives more than a rank expects"), MPI_ERR_OTHER;
  return pkb_mpi::copy(to, given.data() + at, of_root[me]), MPI_SUCCESS;
}
static inline int MPI_Alltoallv(const void* mine, const int* counts, const int* starts, MPI_Datatype type, void* to, const int* counts_to, const int* starts_to, MPI_Datatype type_to, MPI_Comm) {
  if (mine == MPI_IN_PLACE) return pkb_emu_refuse("MPI_Alltoallv in place"), MPI_ERR_OTHER;
  const auto ranks = static_cast<size_t>(pkb_emu_rank_count()), me = size_t(pkb_emu_my_rank());
  const size_t each = pkb_mpi::bytes_of(type), each_to = pkb_mpi::bytes_of(type_to);
  std::vector<char> parts, given;
  std::vector<size_t> begins, sizes(ranks), all_sizes(ranks * ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    sizes[rank] = size_t(counts[rank]) * each;
    parts.resize(parts.size() + sizes[rank]);
    pkb_mpi::copy(parts.data() + parts.size() - sizes[rank], static_cast<const char*>(mine) + size_t(starts[rank]) * each, sizes[rank]);
  }
  if (pkb_mpi::exchange("MPI_Alltoallv", sizes.data(), all_sizes.data(), ranks * sizeof(size_t)) != MPI_SUCCESS) return MPI_ERR_OTHER;
  if (pkb_mpi::gather_varying("MPI_Alltoallv", parts.data(), parts.size(), &given, &begins) != MPI_SUCCESS) return MPI_ERR_OTHER;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t* const of_rank = all_sizes.data() + rank * ranks;
    size_t at = begins[rank];
    for (size_t before = 0; before < me; ++before) at += of_rank[before];
    if (of_rank[me] > size_t(counts_to[rank]) * each_to) return pkb_emu_fail("MPI_Alltoallv: a rank gives more than another expects of it"), MPI_ERR_OTHER;
    pkb_mpi::copy(static_cast<char*>(to) + size_t(starts_to[rank]) * each_to, given.data() + at, of_rank[me]);
  }
  return MPI_SUCCESS;
}
static inline int MPI_Reduce_scatter(const void* mine, void* to, const int* counts, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  const size_t each = pkb_mpi::bytes_of(type);
  int total = 0, before = 0;
  for (int rank = 0; rank < pkb_emu_rank_count(); ++rank) {
    if (rank < pkb_emu_my_rank()) before += counts[rank];
    total += counts[rank];
  }
  std::vector<char> sums(size_t(total) * each);
  const int status = MPI_Allreduce(mine == MPI_IN_PLACE ? to : mine, sums.data(), total, type, operation, comm);
  if (status == MPI_SUCCESS) pkb_mpi::copy(to, sums.data() + size_t(before) * each, size_t(counts[pkb_emu_my_rank()]) * each);
  return status;
}
static inline int MPI_Reduce_scatter_block(const void* mine, void* to, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  const std::vector<int> counts(static_cast<size_t>(pkb_emu_rank_count()), count);
  return MPI_Reduce_scatter(mine, to, counts.data(), type, operation, comm);
}
