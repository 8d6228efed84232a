// The description of a message: a line that peers compare before they reduce the message, and that an error can quote.
#ifndef KUNGFU_NATIVE_SIGNATURE_H_
#define KUNGFU_NATIVE_SIGNATURE_H_

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "flat_message.h"
#include "shared_memory.h"

namespace kungfu {

// FNV-1a; the only requirement is that all peers compute the same hash.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    const unsigned char* next = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) state_ = (state_ ^ next[i]) * 1099511628211ull;
  }
  unsigned long long value() const { return state_; }

 private:
  uint64_t state_ = 14695981039346656037ull;
};

inline unsigned long long hash_of(const std::string& tag, const std::vector<TensorPart>& parts) {
  Hash hash;
  hash.add(tag.data(), tag.size());
  for (const TensorPart& part : parts) {
    hash.add(&part.type, sizeof(part.type));
    hash.add(&part.bytes, sizeof(part.bytes));
  }
  return hash.value();
}

inline std::string quote(const Signature& signature) {
  return std::string(signature.text, strnlen(signature.text, kSignatureBytes));
}

// Writes tag, tensors, elements by type, and a hash of the tag and of every tensor's type and length.
inline void write_signature(const std::string& tag, const std::vector<TensorPart>& parts, const Layout& layout,
                            Signature* to) {
  // Appends after `used` bytes, truncated at the end of the signature; returns the bytes used afterwards.
  const auto print = [&](size_t used, const char* format, auto... values) {
    const size_t room = kSignatureBytes - used;
    const int length = std::snprintf(to->text + used, room, format, values...);
    return used + std::min(static_cast<size_t>(length), room - 1);
  };
  size_t used = print(0, "\"%.150s\" of %zu tensors (", tag.c_str(), parts.size());
  for (int type = 0; type < kElementTypes; ++type) {
    const long long elements = layout.sections[type].bytes() / kElementBytes[type];
    if (elements > 0) used = print(used, "%s*%lld ", kElementNames[type], elements);
  }
  // Two messages may have equal numbers of elements but different tensors: the hash distinguishes them.
  print(used, "#%016llx)", hash_of(tag, parts));
}

// Empty if all ranks run the same message; otherwise describes two ranks that differ, and their difference.
inline std::string difference(const Signature* signatures, int size) {
  for (int rank = 1; rank < size; ++rank) {
    if (quote(signatures[rank]) == quote(signatures[0])) continue;  // the same message as rank 0
    const std::string theirs = ", rank=" + std::to_string(rank) + " runs " + quote(signatures[rank]);
    return "rank=0 runs " + quote(signatures[0]) + theirs;
  }
  return "";
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_SIGNATURE_H_
