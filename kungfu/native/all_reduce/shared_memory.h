// The memory that the peers of a group share, mapped into this process.
//
// A header, then two buffers of one block per rank. All of it starts as zeros. Nothing in it is a pointer: every peer
// maps it at an address of its own.
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

// One rank's progress, on cache lines of its own because every other rank polls it.
struct alignas(128) Progress {
  std::atomic<uint32_t> phase;     // the futex that the others sleep on
  std::atomic<uint32_t> sleepers;  // how many ranks sleep on `phase`: where none does, arriving is no system call
  std::atomic<uint32_t> left;      // 1 once the rank has said that it goes
  std::atomic<uint32_t> beat;      // counted up by a thread of the rank's own while its process runs
};

// Why the group no longer works: written once, by the first peer that finds out.
struct alignas(128) SharedFailure {
  std::atomic<uint32_t> state;  // whole, being written, broken; the fields below are valid once it is broken
  int32_t kind;                 // a FailureKind
  double waited_s;
  uint8_t at_fault[kMaxPeers];  // by rank: 1 for each peer that the failure names
  char text[kFailureBytes];
};

// The message that a rank is about to reduce, in a line: text, ended by a zero.
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

constexpr int64_t kPageBytes = 64 * 1024;  // the largest page of the machines we know
// Whole pages, so that the blocks begin at one.
constexpr int64_t kHeaderBytes = (static_cast<int64_t>(sizeof(Header)) + kPageBytes - 1) / kPageBytes * kPageBytes;

// The bytes that a group of `size` needs, or -1 when no group can have that size.
inline int64_t memory_bytes(int size) {
  // One peer needs no memory, and the header has room for so many.
  return size < 2 || size > kMaxPeers ? -1 : kHeaderBytes + 2 * kBlockBytes * size;
}

// Final; owns the mapping, not the descriptor.
class SharedMemory {
 public:
  // Maps `descriptor`; errno says why when `mapped` is false afterwards.
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
