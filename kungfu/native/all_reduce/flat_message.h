// A message as one flat run of bytes.
//
// The tensors of a call are laid one after the other, those of one element type together. Each type's section starts
// at a multiple of a cache line, so that a cut at any cache line of the message is a cut between two elements.
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

// One tensor of a call: where its values come from, where the sums go, its place in the call, whether it counts in the
// norms, and its offset in the message. The last tensor of a call is the last of the message, and does not count.
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

// Where each element type's section lies; an absent type has an empty span.
struct Layout {
  Span sections[kElementTypes];
  int64_t bytes = 0;
};

// Sets the offset of every part; parts of one type must stand together.
Layout lay_out(std::vector<TensorPart>* parts);

// The part of `chunk` that falls to `rank` of `size`: whole cache lines, as equal as they can be.
Span portion(const Span& chunk, int rank, int size);

// What both have; empty where they do not meet.
Span overlap(const Span& a, const Span& b);

// Walks the parts from the front of the message to its end; each call continues where the last one stopped.
class MessageCursor {
 public:
  MessageCursor(const std::vector<TensorPart>& parts, Norms* norms) : parts_(parts), norms_(norms) {}

  // Copies the message's `span` out of the inputs to `block`, scaled, and takes the norm of the inputs on the way.
  void read(const Span& span, char* block);
  // Copies `block` into the outputs' `span` of the message, and takes the norm of the sums on the way.
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
