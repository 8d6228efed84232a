#include "extents.h"

#include <algorithm>
#include <cstring>

namespace kungfu {

Extents::Extents(const int64_t* table, int64_t count)
    : extents_(reinterpret_cast<const Extent*>(table)), starts_(1, 0) {
  for (int64_t i = 0; i < count; ++i) starts_.push_back(starts_.back() + extents_[i].bytes);
}

template <typename Copy>
void Extents::walk(int64_t start, int64_t bytes, Copy copy) const {
  // A range may go beyond the end of the state: what is there is copied.
  const int64_t stop = std::min(start + bytes, starts_.back());
  // The last variable that begins at `start` or before it; of several empty ones at one place the last.
  size_t next = std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin() - 1;
  for (int64_t at = start; at < stop; ++next) {
    // What of the range lies in this variable; nothing of it in an empty one.
    const int64_t end = std::min(stop, starts_[next + 1]);
    if (end > at) copy(extents_[next].data() + (at - starts_[next]), at - start, end - at);
    at = std::max(at, end);
  }
}

void Extents::read(int64_t start, char* to, int64_t bytes) const {
  walk(start, bytes, [&](const char* memory, int64_t offset, int64_t part) { std::memcpy(to + offset, memory, part); });
}

void Extents::write(int64_t start, const char* from, int64_t bytes) const {
  walk(start, bytes, [&](char* memory, int64_t offset, int64_t part) { std::memcpy(memory, from + offset, part); });
}

}  // namespace kungfu
