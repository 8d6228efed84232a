// What Python calls through ctypes, for the state. A `table` has a row of address and bytes per variable, `count` rows.

#include "transfer.h"
#include "digest.h"
#include "extents.h"

extern "C" {

// The checksum of every row.
void kungfu_digest(const int64_t* table, int64_t count, uint64_t* digests) {
  kungfu::digest(reinterpret_cast<const kungfu::Extent*>(table), count, digests);
}

// The bytes of the memory that a sender and a receiver share.
int64_t kungfu_transfer_ring_bytes() { return kungfu::kTransferBlocks * kungfu::kTransferBlockBytes; }

// See transfer.h; gives a `TransferOutcome`.
int kungfu_send_range(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd, int socket,
                      double wait_s, int64_t* done) {
  const kungfu::Extents state(table, count);
  return static_cast<int>(kungfu::send_range(state, {start, stop}, {ring_fd, socket, wait_s}, done));
}

int kungfu_receive_range(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd, int socket,
                         double wait_s, int64_t* done) {
  const kungfu::Extents state(table, count);
  return static_cast<int>(kungfu::receive_range(state, {start, stop}, {ring_fd, socket, wait_s}, done));
}

}  // extern "C"
