#include "stream.h"

#include <algorithm>
#include <cstring>

#include "arithmetic.h"

namespace kungfu {
namespace {

int64_t round_up(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

}  // namespace

Layout lay_out(std::vector<Piece>* pieces) {
  Layout layout;
  for (Piece& piece : *pieces) {
    Span& section = layout.sections[static_cast<int>(piece.type)];
    if (section.bytes() == 0) section = {round_up(layout.bytes), round_up(layout.bytes)};
    piece.offset = section.end;
    section.end += piece.bytes;
    layout.bytes = section.end;
  }
  return layout;
}

Span portion(const Span& chunk, int rank, int size) {
  const int64_t lines = round_up(chunk.bytes()) / kLineBytes;
  const auto cut = [&](int64_t index) { return std::min(chunk.begin + lines * index / size * kLineBytes, chunk.end); };
  return {cut(rank), cut(rank + 1)};
}

Span overlap(const Span& a, const Span& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

template <typename Copy>
void Cursor::walk(const Span& span, Copy copy) {
  for (; next_ < pieces_.size(); ++next_) {
    const Piece& piece = pieces_[next_];
    const Span whole = {piece.offset, piece.offset + piece.bytes};
    if (whole.begin >= span.end) return;
    const Span part = overlap(whole, span);
    if (part.bytes() > 0) copy(piece, part.begin - whole.begin, part.begin - span.begin, part.bytes());
    if (whole.end > span.end) return;
  }
}

void Cursor::read(const Span& span, char* block) {
  walk(span, [&](const Piece& piece, int64_t in_piece, int64_t in_span, int64_t bytes) {
    copy_scaled(piece.type, piece.input + in_piece, block + in_span, bytes, piece.scale);
  });
}

void Cursor::write(const Span& span, const char* block) {
  walk(span, [&](const Piece& piece, int64_t in_piece, int64_t in_span, int64_t bytes) {
    std::memcpy(piece.output + in_piece, block + in_span, bytes);
  });
}

}  // namespace kungfu
