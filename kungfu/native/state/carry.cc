#include "carry.h"

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
      : base_(mmap(nullptr, kCarryBlocks * kCarryBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                   descriptor, 0)) {}
  ~Ring() {
    if (mapped()) munmap(base_, kCarryBlocks * kCarryBlockBytes);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool mapped() const { return base_ != MAP_FAILED; }
  char* block(int64_t number) const {
    return static_cast<char*>(base_) + number % kCarryBlocks * kCarryBlockBytes;
  }

 private:
  void* const base_;
};

// The bytes that go to and fro: each stands for one block.
class Bell {
 public:
  explicit Bell(const Passage& passage) : passage_(passage) {}

  bool ring() const {
    const char byte = 1;
    ssize_t sent;
    do {
      sent = send(passage_.socket, &byte, 1, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == 1;
  }

  // Waits until the other side has rung `count` times in all.
  Carried heard(int64_t count) {
    while (count_ < count) {
      pollfd awaited = {passage_.socket, POLLIN, 0};
      const int ready = poll(&awaited, 1, static_cast<int>(passage_.wait_s * 1000));
      if (ready == 0) return Carried::kLate;
      if (ready < 0 && errno == EINTR) continue;
      char bytes[kCarryBlocks];
      const ssize_t received = recv(passage_.socket, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (received <= 0) return Carried::kHungUp;
      count_ += received;
    }
    return Carried::kWhole;
  }

  int64_t count() const { return count_; }

 private:
  const Passage& passage_;
  int64_t count_ = 0;
};

struct Block {
  int64_t start;
  int64_t bytes;
};

Block block_of(const Part& part, int64_t number) {
  const int64_t start = part.start + number * kCarryBlockBytes;
  return {start, std::min(kCarryBlockBytes, part.stop - start)};
}

int64_t blocks_of(const Part& part) { return (part.stop - part.start + kCarryBlockBytes - 1) / kCarryBlockBytes; }

int64_t bytes_in(const Part& part, int64_t blocks) {
  return std::min(blocks * kCarryBlockBytes, part.stop - part.start);
}

}  // namespace

Carried give(const Extents& state, const Part& part, const Passage& passage, int64_t* done) {
  *done = 0;
  const Ring ring(passage.ring_fd);
  if (!ring.mapped()) return Carried::kUnmapped;
  Bell bell(passage);
  Carried outcome = Carried::kWhole;
  for (int64_t number = 0; number < blocks_of(part) && outcome == Carried::kWhole; ++number) {
    outcome = bell.heard(number - kCarryBlocks + 1);
    if (outcome != Carried::kWhole) break;
    const Block block = block_of(part, number);
    state.read(block.start, ring.block(number), block.bytes);
    if (!bell.ring()) outcome = Carried::kHungUp;
  }
  if (outcome == Carried::kWhole) outcome = bell.heard(blocks_of(part));
  *done = bytes_in(part, bell.count());
  return outcome;
}

Carried take(const Extents& state, const Part& part, const Passage& passage, int64_t* done) {
  *done = 0;
  const Ring ring(passage.ring_fd);
  if (!ring.mapped()) return Carried::kUnmapped;
  Bell bell(passage);
  for (int64_t number = 0; number < blocks_of(part); ++number) {
    const Carried outcome = bell.heard(number + 1);
    if (outcome != Carried::kWhole) return outcome;
    const Block block = block_of(part, number);
    state.write(block.start, ring.block(number), block.bytes);
    *done += block.bytes;
    if (!bell.ring()) return Carried::kHungUp;
  }
  return Carried::kWhole;
}

}  // namespace kungfu
