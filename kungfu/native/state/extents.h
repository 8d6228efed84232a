// A state in memory: the buffers of its variables, addressed as one run of bytes.
#ifndef KUNGFU_NATIVE_STATE_EXTENTS_H_
#define KUNGFU_NATIVE_STATE_EXTENTS_H_

#include <cstdint>
#include <vector>

namespace kungfu {

// One variable's memory, as Python and the op KungfuBuffers write it down: two int64.
struct Extent {
  int64_t address;
  int64_t bytes;

  char* data() const { return reinterpret_cast<char*>(address); }
};

static_assert(sizeof(Extent) == 16, "a row of the table");

// Final. Does not own the memory.
class Extents {
 public:
  Extents(const int64_t* table, int64_t count);

  int64_t bytes() const { return starts_.back(); }
  // Copies the bytes from `start` on, as many as fit, out of the variables.
  void read(int64_t start, char* to, int64_t bytes) const;
  // Copies `bytes` into the variables, from `start` on.
  void write(int64_t start, const char* from, int64_t bytes) const;

 private:
  template <typename Copy>
  void walk(int64_t start, int64_t bytes, Copy copy) const;

  const Extent* extents_;
  std::vector<int64_t> starts_;  // one more than extents: the last is the end
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_EXTENTS_H_
