// The transfer of a range of a state from one process to another of the same machine.
//
// Both map one small ring of blocks. The sender copies a block out of its variables and sends a byte over the socket;
// the receiver copies it into its own and sends a byte back, which frees the block. So each byte is copied twice, the
// second time out of the cache, and no more than the ring is ever held beside the two states. A socket that ends shows
// that the other side is gone.
#ifndef KUNGFU_NATIVE_STATE_TRANSFER_H_
#define KUNGFU_NATIVE_STATE_TRANSFER_H_

#include <cstdint>

#include "extents.h"

namespace kungfu {

constexpr int64_t kTransferBlockBytes = 1 << 20;
constexpr int64_t kTransferBlocks = 4;

// How a transfer ended; Python knows these numbers.
enum class TransferOutcome { kWhole = 0, kHungUp = 1, kLate = 2, kUnmapped = 3 };

// The bytes from `start` to `stop` of the state.
struct ByteRange {
  int64_t start;
  int64_t stop;
};

// What the two sides share; both descriptors stay the caller's. No wait for the other side takes longer than `wait_s`.
struct TransferChannel {
  int ring_fd;
  int socket;
  double wait_s;
};

// `done` is the number of bytes that the receiver has acknowledged.
TransferOutcome send_range(const Extents& state, const ByteRange& range, const TransferChannel& channel, int64_t* done);

// `done` is the number of bytes that came.
TransferOutcome receive_range(const Extents& state, const ByteRange& range, const TransferChannel& channel,
                              int64_t* done);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_TRANSFER_H_
