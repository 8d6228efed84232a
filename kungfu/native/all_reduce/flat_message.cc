#include "flat_message.h"

#include <algorithm>

#include "norms.h"

namespace kungfu {
namespace {

int64_t round_up(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

}  // namespace

Layout lay_out(std::vector<TensorPart>* parts) {
  Layout layout;
  for (TensorPart& part : *parts) {
    Span& section = layout.sections[static_cast<int>(part.type)];
    // The first part of an element type opens its section, at the next cache line.
    if (section.bytes() == 0) section = {round_up(layout.bytes), round_up(layout.bytes)};
    part.offset = section.end;
    section.end += part.bytes;
    layout.bytes = section.end;
  }
  return layout;
}

Span portion(const Span& chunk, int rank, int size) {
  const int64_t lines = round_up(chunk.bytes()) / kLineBytes;
  // The last cache line of a message may not be full.
  const auto cut = [&](int64_t index) { return std::min(chunk.begin + lines * index / size * kLineBytes, chunk.end); };
  return {cut(rank), cut(rank + 1)};
}

Span overlap(const Span& a, const Span& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

template <typename Copy>
void MessageCursor::walk(const Span& span, Copy copy) {
  for (; next_ < parts_.size(); ++next_) {
    const TensorPart& part = parts_[next_];
    const Span whole = {part.offset, part.offset + part.bytes};
    if (whole.begin >= span.end) return;  // this part begins after the span: it belongs to a later call
    const Span common = overlap(whole, span);
    if (common.bytes() > 0) copy(part, common.begin - whole.begin, common.begin - span.begin, common.bytes());
    if (whole.end > span.end) return;  // the rest of this part belongs to the next span
  }
}

void MessageCursor::read(const Span& span, char* block) {
  walk(span, [&](const TensorPart& part, int64_t in_part, int64_t in_span, int64_t bytes) {
    norms_->copy_in(part, part.input + in_part, block + in_span, bytes);
  });
}

void MessageCursor::write(const Span& span, const char* block) {
  walk(span, [&](const TensorPart& part, int64_t in_part, int64_t in_span, int64_t bytes) {
    norms_->copy_out(part, block + in_span, part.output + in_part, bytes);
  });
}

}  // namespace kungfu
