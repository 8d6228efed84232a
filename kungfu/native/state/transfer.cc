// The transfer of a range of a state from one process to another of the same machine.
//
// Both map one small ring of blocks. The sender copies a block from its variables to the ring and sends a byte over the
// socket; the receiver copies the block to its own variables and sends a byte back, which frees the block. So each byte
// of the state is copied twice, the second time from the cache, and the ring is the only additional memory. The end of
// the socket's stream shows that the other side is gone.

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>

#include "extents.h"

namespace kungfu {
namespace {

constexpr int64_t kTransferBlockBytes = 1 << 20;
constexpr int64_t kTransferBlocks = 4;
constexpr int64_t kRingBytes = kTransferBlocks * kTransferBlockBytes;

// The outcome of a transfer; Python uses these numbers too.
enum class TransferOutcome { kWhole = 0, kHungUp = 1, kLate = 2, kUnmapped = 3 };

// The bytes from `start` to `stop` of the state.
struct ByteRange {
  int64_t start;
  int64_t stop;
};

// The ring, mapped into this process. All pages are created at once: otherwise each page would cost a page fault.
class Ring {
 public:
  explicit Ring(int descriptor)
      : base_(mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0)) {}
  ~Ring() {
    if (mapped()) munmap(base_, kRingBytes);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool mapped() const { return base_ != MAP_FAILED; }
  char* block(int64_t number) const {
    return static_cast<char*>(base_) + number % kTransferBlocks * kTransferBlockBytes;
  }

 private:
  void* const base_;
};

// The bytes sent over the socket in both directions: each byte represents one block.
class BlockSignal {
 public:
  BlockSignal(int socket, double wait_s) : socket_(socket), wait_ms_(static_cast<int>(wait_s * 1000)) {}

  // False if the other side is gone.
  bool send_one() const {
    const char byte = 1;
    ssize_t sent;
    do {
      sent = send(socket_, &byte, 1, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);  // a signal came: nothing was sent
    return sent == 1;
  }

  // Waits until the other side has sent `count` bytes in all.
  TransferOutcome wait_for(int64_t count) {
    while (count_ < count) {
      pollfd awaited = {socket_, POLLIN, 0};
      const int ready = poll(&awaited, 1, wait_ms_);
      if (ready == 0) return TransferOutcome::kLate;  // the other side is connected, and silent
      if (ready < 0 && errno == EINTR) continue;  // a signal came: the wait begins again
      char bytes[kTransferBlocks];
      const ssize_t received = recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
      // A spurious wake-up: there is nothing to read yet.
      if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (received <= 0) return TransferOutcome::kHungUp;  // the end of the stream: the other process is gone
      count_ += received;
    }
    return TransferOutcome::kWhole;
  }

  int64_t count() const { return count_; }

 private:
  const int socket_, wait_ms_;
  int64_t count_ = 0;  // the number of bytes received
};

// A part of the range that fits into a block of the ring: its start in the state, and its length.
struct Block {
  int64_t start;
  int64_t bytes;
};

Block block_of(const ByteRange& range, int64_t number) {
  const int64_t start = range.start + number * kTransferBlockBytes;
  return {start, std::min(kTransferBlockBytes, range.stop - start)};
}

int64_t blocks_of(const ByteRange& range) {
  return (range.stop - range.start + kTransferBlockBytes - 1) / kTransferBlockBytes;
}

int64_t bytes_in(const ByteRange& range, int64_t blocks) {
  return std::min(blocks * kTransferBlockBytes, range.stop - range.start);
}

}  // namespace

extern "C" {

// The size of the memory that a sender and a receiver share, in bytes.
int64_t kungfu_transfer_ring_bytes() { return kRingBytes; }

// `table` has `count` rows, one per variable, of address and size in bytes. The two sides share the ring and the
// socket; the caller keeps both descriptors. No wait for the other side takes longer than `wait_s`.
// `done` is the number of bytes that the receiver has acknowledged.
TransferOutcome kungfu_send_range(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd,
                                  int socket, double wait_s, int64_t* done) {
  *done = 0;
  const Extents state(table, count);
  const ByteRange range = {start, stop};
  const Ring ring(ring_fd);
  if (!ring.mapped()) return TransferOutcome::kUnmapped;
  BlockSignal signal(socket, wait_s);
  TransferOutcome outcome = TransferOutcome::kWhole;
  for (int64_t number = 0; number < blocks_of(range) && outcome == TransferOutcome::kWhole; ++number) {
    // After the first round, all blocks of the ring are in use: the oldest block has to be freed first.
    outcome = signal.wait_for(number - kTransferBlocks + 1);
    if (outcome != TransferOutcome::kWhole) break;
    const Block block = block_of(range, number);
    state.read(block.start, ring.block(number), block.bytes);
    // The write to the ring precedes the sending of the byte: the system calls of both sides order the two.
    if (!signal.send_one()) outcome = TransferOutcome::kHungUp;
  }
  // The last blocks are on their way: the receiver has all blocks once it has acknowledged all of them.
  if (outcome == TransferOutcome::kWhole) outcome = signal.wait_for(blocks_of(range));
  *done = bytes_in(range, signal.count());
  return outcome;
}

// `done` is the number of bytes received.
TransferOutcome kungfu_receive_range(const int64_t* table, int64_t count, int64_t start, int64_t stop, int ring_fd,
                                     int socket, double wait_s, int64_t* done) {
  *done = 0;
  const Extents state(table, count);
  const ByteRange range = {start, stop};
  const Ring ring(ring_fd);
  if (!ring.mapped()) return TransferOutcome::kUnmapped;
  BlockSignal signal(socket, wait_s);
  for (int64_t number = 0; number < blocks_of(range); ++number) {
    const TransferOutcome outcome = signal.wait_for(number + 1);
    if (outcome != TransferOutcome::kWhole) return outcome;
    const Block block = block_of(range, number);
    state.write(block.start, ring.block(number), block.bytes);
    // Counted before the acknowledgement: a sender that hangs up has nevertheless sent the block.
    *done += block.bytes;
    if (!signal.send_one()) return TransferOutcome::kHungUp;
  }
  return TransferOutcome::kWhole;
}

}  // extern "C"

}  // namespace kungfu
