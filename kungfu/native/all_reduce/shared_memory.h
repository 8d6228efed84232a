// The memory that the peers of a group share, mapped into this process.
//
// It contains a header, then two buffers of one block per rank, all initially zero. It contains no pointers, because
// every peer maps it at a different address.
#ifndef KUNGFU_NATIVE_SHARED_MEMORY_H_
#define KUNGFU_NATIVE_SHARED_MEMORY_H_

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kungfu {

constexpr int kMaxPeers = 256;

// Two buffers of this size for each of four peers fit a second-level cache of 2 MiB.
constexpr int64_t kBlockBytes = 256 * 1024;

constexpr size_t kSignatureBytes = 384;
constexpr size_t kFailureBytes = 1024;

// The progress of one rank, on separate cache lines because every other rank polls it.
struct alignas(128) Progress {
  std::atomic<uint32_t> phase;     // the futex that the others sleep on
  std::atomic<uint32_t> sleepers;  // how many ranks sleep on `phase`: if none, an arrival needs no system call
  std::atomic<uint32_t> left;      // 1 once the rank has announced that it leaves
  std::atomic<uint32_t> beat;      // incremented by a thread of the rank while its process runs
};

// The reason why the group is broken: written once, by the first peer that finds the failure.
struct alignas(128) SharedFailure {
  std::atomic<uint32_t> state;  // whole, being written, broken; the fields below are valid once it is broken
  int32_t kind;                 // a FailureKind
  double waited_s;
  uint8_t at_fault[kMaxPeers];  // by rank: 1 for each peer that the failure names
  char text[kFailureBytes];
};

// The message that a rank is about to reduce, as a line of text that ends with a zero byte.
struct alignas(128) Signature {
  char text[kSignatureBytes];
};

struct Header {
  SharedFailure failure;
  Progress progress[kMaxPeers];
  Signature signatures[kMaxPeers];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "progress is shared between processes");
static_assert(sizeof(std::atomic<uint32_t>) == 4, "the phase is a futex word");

constexpr int64_t kPageBytes = 64 * 1024;  // the largest page size of supported machines
// Whole pages, so that the blocks begin at a page.
constexpr int64_t kHeaderBytes = (static_cast<int64_t>(sizeof(Header)) + kPageBytes - 1) / kPageBytes * kPageBytes;

// The bytes that a group of `size` needs, or -1 if no group can have that size.
inline int64_t memory_bytes(int size) {
  // One peer needs no memory, and the header limits the number of peers.
  return size < 2 || size > kMaxPeers ? -1 : kHeaderBytes + 2 * kBlockBytes * size;
}

// Final; owns the mapping, not the descriptor.
class SharedMemory {
 public:
  // Maps `descriptor`; if `mapped` is false afterwards, errno contains the reason.
  SharedMemory(int descriptor, int size) : size_(size) {
    void* mapping = mmap(nullptr, memory_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapping != MAP_FAILED) base_ = static_cast<char*>(mapping);
  }
  ~SharedMemory() {
    if (mapped()) munmap(base_, memory_bytes(size_));
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  bool mapped() const { return base_ != nullptr; }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  // The `kBlockBytes` of a rank in one of the two buffers.
  char* block(int buffer, int rank) const {
    return base_ + kHeaderBytes + (static_cast<int64_t>(buffer) * size_ + rank) * kBlockBytes;
  }

 private:
  char* base_ = nullptr;
  const int size_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_SHARED_MEMORY_H_
