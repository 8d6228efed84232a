// What Python calls through ctypes, for the state. A `table` has a row of address and bytes for each of `count` variables.

#include "carry.h"
#include "digest.h"
#include "extents.h"

extern "C" {

// The checksum of every row.
void kungfu_digest(const int64_t* table, int64_t count, uint64_t* digests) {
  kungfu::digest(reinterpret_cast<const kungfu::Extent*>(table), count, digests);
}

// The bytes of the memory that a giver and a taker share.
int64_t kungfu_carry_bytes() { return kungfu::kCarryBlocks * kungfu::kCarryBlockBytes; }

// See carry.h; gives a `Carried`.
int kungfu_give(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd, int socket, double wait_s,
                int64_t* done) {
  return static_cast<int>(kungfu::give(kungfu::Extents(table, count), {start, stop}, {ring_fd, socket, wait_s}, done));
}

int kungfu_take(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd, int socket, double wait_s,
                int64_t* done) {
  return static_cast<int>(kungfu::take(kungfu::Extents(table, count), {start, stop}, {ring_fd, socket, wait_s}, done));
}

}  // extern "C"
