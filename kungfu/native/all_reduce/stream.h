// A message as one stream of bytes.
//
// The tensors of a call are laid one behind the other, those of one element type together. Each type's section starts
// at a multiple of a cache line, so that a cut at any cache line of the stream is a cut between two elements.
#ifndef KUNGFU_NATIVE_STREAM_H_
#define KUNGFU_NATIVE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "element.h"

namespace kungfu {

constexpr int64_t kLineBytes = 64;

// A half-open range of bytes.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

// One tensor of a call: where its values come from, where the sums go, and its place in the stream.
struct Piece {
  ElementType type;
  double scale;
  const char* input;
  char* output;
  int64_t bytes;
  int64_t offset = 0;
};

// Where each element type's section lies; an absent type has an empty span.
struct Layout {
  Span sections[kElementTypes];
  int64_t bytes = 0;
};

// Sets the offset of every piece; the pieces must be sorted by type.
Layout lay_out(std::vector<Piece>* pieces);

// The part of `chunk` that falls to `rank` of `size`: whole cache lines, as equal as they can be.
Span portion(const Span& chunk, int rank, int size);

Span overlap(const Span& a, const Span& b);

// Walks the pieces from the front of the stream to its end; each call continues where the last one stopped.
class Cursor {
 public:
  explicit Cursor(const std::vector<Piece>& pieces) : pieces_(pieces) {}

  // Copies the stream's `span` out of the inputs to `block`, scaled.
  void read(const Span& span, char* block);
  // Copies `block` into the outputs' `span` of the stream.
  void write(const Span& span, const char* block);

 private:
  template <typename Copy>
  void walk(const Span& span, Copy copy);

  const std::vector<Piece>& pieces_;
  size_t next_ = 0;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STREAM_H_
