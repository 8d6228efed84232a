#include "transfer.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>

namespace kungfu {
namespace {

// The ring, mapped into this process. Its pages are made at once: touching them one by one would cost a fault each.
class Ring {
 public:
  explicit Ring(int descriptor)
      : base_(mmap(nullptr, kTransferBlocks * kTransferBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                   descriptor, 0)) {}
  ~Ring() {
    if (mapped()) munmap(base_, kTransferBlocks * kTransferBlockBytes);
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

// The bytes that go to and fro over the socket: each stands for one block.
class BlockSignal {
 public:
  explicit BlockSignal(const TransferChannel& channel) : channel_(channel) {}

  // False where the other side is gone.
  bool send_one() const {
    const char byte = 1;
    ssize_t sent;
    do {
      sent = send(channel_.socket, &byte, 1, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);  // a signal came: nothing was sent
    return sent == 1;
  }

  // Waits until the other side has sent `count` bytes in all.
  TransferOutcome wait_for(int64_t count) {
    while (count_ < count) {
      pollfd awaited = {channel_.socket, POLLIN, 0};
      const int ready = poll(&awaited, 1, static_cast<int>(channel_.wait_s * 1000));
      if (ready == 0) return TransferOutcome::kLate;  // the other side is connected, and silent
      if (ready < 0 && errno == EINTR) continue;  // a signal came: the wait begins again
      char bytes[kTransferBlocks];
      const ssize_t received = recv(channel_.socket, bytes, sizeof(bytes), MSG_DONTWAIT);
      // A spurious wake-up: there is nothing to read yet.
      if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (received <= 0) return TransferOutcome::kHungUp;  // the end of the stream: the other process is gone
      count_ += received;
    }
    return TransferOutcome::kWhole;
  }

  int64_t count() const { return count_; }

 private:
  const TransferChannel& channel_;
  int64_t count_ = 0;  // of the bytes that came
};

// A part of the range that fits a block of the ring: where it begins in the state, and how long it is.
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

TransferOutcome send_range(const Extents& state, const ByteRange& range, const TransferChannel& channel,
                           int64_t* done) {
  *done = 0;
  const Ring ring(channel.ring_fd);
  if (!ring.mapped()) return TransferOutcome::kUnmapped;
  BlockSignal signal(channel);
  TransferOutcome outcome = TransferOutcome::kWhole;
  for (int64_t number = 0; number < blocks_of(range) && outcome == TransferOutcome::kWhole; ++number) {
    // All blocks of the ring are in use: the oldest one has to be freed first. Not so in the first round.
    outcome = signal.wait_for(number - kTransferBlocks + 1);
    if (outcome != TransferOutcome::kWhole) break;
    const Block block = block_of(range, number);
    state.read(block.start, ring.block(number), block.bytes);
    // The write into the ring is done before the byte is sent: the system calls of both sides order them.
    if (!signal.send_one()) outcome = TransferOutcome::kHungUp;
  }
  // The last blocks are on their way: the receiver has them once it has acknowledged all.
  if (outcome == TransferOutcome::kWhole) outcome = signal.wait_for(blocks_of(range));
  *done = bytes_in(range, signal.count());
  return outcome;
}

TransferOutcome receive_range(const Extents& state, const ByteRange& range, const TransferChannel& channel,
                              int64_t* done) {
  *done = 0;
  const Ring ring(channel.ring_fd);
  if (!ring.mapped()) return TransferOutcome::kUnmapped;
  BlockSignal signal(channel);
  for (int64_t number = 0; number < blocks_of(range); ++number) {
    const TransferOutcome outcome = signal.wait_for(number + 1);
    if (outcome != TransferOutcome::kWhole) return outcome;
    const Block block = block_of(range, number);
    state.write(block.start, ring.block(number), block.bytes);
    // Counted before it is acknowledged: a sender that hangs up has sent it nevertheless.
    *done += block.bytes;
    if (!signal.send_one()) return TransferOutcome::kHungUp;
  }
  return TransferOutcome::kWhole;
}

}  // namespace kungfu
