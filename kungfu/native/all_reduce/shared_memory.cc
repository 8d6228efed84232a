#include "shared_memory.h"

#include <sys/mman.h>

namespace kungfu {
namespace {

constexpr int64_t kPageBytes = 64 * 1024;  // the largest page of the machines we know
// Whole pages, so that the blocks begin at one.
constexpr int64_t kHeaderBytes = (static_cast<int64_t>(sizeof(Header)) + kPageBytes - 1) / kPageBytes * kPageBytes;

}  // namespace

int64_t memory_bytes(int size) {
  // One peer needs no memory, and the header has room for so many.
  if (size < 2 || size > kMaxPeers) return -1;
  return kHeaderBytes + 2 * kBlockBytes * size;
}

SharedMemory::SharedMemory(int descriptor, int size) : size_(size) {
  void* mapping = mmap(nullptr, memory_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapping != MAP_FAILED) base_ = static_cast<char*>(mapping);
}

SharedMemory::~SharedMemory() {
  if (mapped()) munmap(base_, memory_bytes(size_));
}

char* SharedMemory::block(int buffer, int rank) const {
  return base_ + kHeaderBytes + (static_cast<int64_t>(buffer) * size_ + rank) * kBlockBytes;
}

}  // namespace kungfu
