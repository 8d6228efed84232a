// A state in memory: the buffers of its variables, addressed as one range of bytes.
#ifndef KUNGFU_NATIVE_STATE_EXTENTS_H_
#define KUNGFU_NATIVE_STATE_EXTENTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kungfu {

// The memory of one variable, in the form that Python and the op KungfuBuffers write: two int64.
struct Extent {
  int64_t address;
  int64_t bytes;

  char* data() const { return reinterpret_cast<char*>(address); }
};

static_assert(sizeof(Extent) == 16, "a row of the table");

// Final. Does not own the memory.
class Extents {
 public:
  Extents(const int64_t* table, int64_t count)
      : extents_(reinterpret_cast<const Extent*>(table)), starts_(1, 0) {
    for (int64_t i = 0; i < count; ++i) starts_.push_back(starts_.back() + extents_[i].bytes);
  }

  // Copies bytes from the variables, from `start` on, as many as fit.
  void read(int64_t start, char* to, int64_t bytes) const {
    walk(start, bytes, [&](const char* memory, int64_t offset, int64_t part) {
      std::memcpy(to + offset, memory, part);
    });
  }

  // Copies `bytes` into the variables, from `start` on.
  void write(int64_t start, const char* from, int64_t bytes) const {
    walk(start, bytes, [&](char* memory, int64_t offset, int64_t part) { std::memcpy(memory, from + offset, part); });
  }

 private:
  template <typename Copy>
  void walk(int64_t start, int64_t bytes, Copy copy) const {
    // A range may extend beyond the end of the state: only the existing bytes are copied.
    const int64_t stop = std::min(start + bytes, starts_.back());
    // The last variable that begins at or before `start`; of several variables that begin there, the last.
    size_t next = std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin() - 1;
    for (int64_t at = start; at < stop; ++next) {
      // The part of the range that lies in this variable; empty for an empty variable.
      const int64_t end = std::min(stop, starts_[next + 1]);
      if (end > at) copy(extents_[next].data() + (at - starts_[next]), at - start, end - at);
      at = std::max(at, end);
    }
  }

  const Extent* extents_;
  std::vector<int64_t> starts_;  // one more entry than extents: the last entry is the end
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_EXTENTS_H_
