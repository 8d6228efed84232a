// A message as one flat run of bytes.
//
// The tensors of a call follow each other, grouped by element type. The section of each type starts at a multiple of a
// cache line, so that a cut at any cache line of the message lies between two elements.
#ifndef KUNGFU_NATIVE_FLAT_MESSAGE_H_
#define KUNGFU_NATIVE_FLAT_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "element.h"

namespace kungfu {

class Norms;

constexpr int64_t kLineBytes = 64;

// A half-open range of bytes.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

// One tensor of a call: its values, the destination of the sums, its index in the call, whether the norms include it,
// and its offset in the message. The last tensor of a call is the last in the message, and the norms exclude it.
struct TensorPart {
  ElementType type;
  double scale;
  const char* input;
  char* output;
  int64_t bytes;
  size_t place;
  bool counts;
  int64_t offset = 0;
};

// The section of each element type; an absent type has an empty span.
struct Layout {
  Span sections[kElementTypes];
  int64_t bytes = 0;
};

// Sets the offset of every part; parts of one type must be adjacent.
Layout lay_out(std::vector<TensorPart>* parts);

// The portion of `chunk` for `rank` of `size`: whole cache lines, in portions as equal as possible.
Span portion(const Span& chunk, int rank, int size);

// The intersection of both; empty if they do not overlap.
Span overlap(const Span& a, const Span& b);

// Walks the parts from the front of the message to its end; each call continues where the previous call stopped.
class MessageCursor {
 public:
  MessageCursor(const std::vector<TensorPart>& parts, Norms* norms) : parts_(parts), norms_(norms) {}

  // Copies `span` of the message from the inputs to `block`, scaled, and computes the norm of the inputs meanwhile.
  void read(const Span& span, char* block);
  // Copies `block` to `span` of the message in the outputs, and computes the norm of the sums meanwhile.
  void write(const Span& span, const char* block);

 private:
  template <typename Copy>
  void walk(const Span& span, Copy copy);

  const std::vector<TensorPart>& parts_;
  Norms* const norms_;
  size_t next_ = 0;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_FLAT_MESSAGE_H_
