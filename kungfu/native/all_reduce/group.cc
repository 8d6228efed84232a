#include "group.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "arithmetic.h"
#include "signature.h"

namespace kungfu {
namespace {

struct Registry {
  std::mutex lock;
  std::map<int64_t, std::shared_ptr<Group>> groups;
  std::map<int64_t, Failure> failures;  // of the last message; a group that is unplugged leaves it behind
};

Registry& registry() {
  static Registry* const only = new Registry;  // never destroyed: an op may outlast the end of main
  return *only;
}

}  // namespace

Group::Group(int memory_descriptor, const int* sockets, const Place& place)
    : place_(place), memory_(memory_descriptor, place.size), crew_(memory_, sockets, place) {}

std::string Group::defect() const {
  if (!memory_.mapped()) return std::string("the shared memory cannot be mapped: ") + std::strerror(errno);
  if (!crew_.complete()) return std::string("a peer's socket cannot be kept: ") + std::strerror(errno);
  return "";
}

MaybeFailure Group::all_reduce(const std::string& tag, std::vector<Piece>* pieces) {
  const std::lock_guard<std::mutex> held(one_message_);
  const ExactArithmetic exact;
  if (MaybeFailure failure = crew_.broken()) return failure;
  const Layout layout = lay_out(pieces);
  write_signature(tag, *pieces, layout, &memory_.header().signatures[place_.rank]);
  Cursor inputs(*pieces), outputs(*pieces);
  Span chunk;
  do {
    chunk = {chunk.end, std::min(chunk.end + kBlockBytes, layout.bytes)};
    const int buffer = crew_.phase() / 2 % 2;
    inputs.read(chunk, memory_.block(buffer, place_.rank));
    if (MaybeFailure failure = crew_.meet(tag)) return failure;
    if (chunk.begin == 0) {
      if (MaybeFailure failure = agree()) return failure;
    }
    sum_portion(chunk, layout, buffer);
    if (MaybeFailure failure = crew_.meet(tag)) return failure;
    copy_out(chunk, buffer, &outputs);
  } while (chunk.end < layout.bytes);  // an empty message makes one round too: peers meet in it and compare it
  return {};
}

MaybeFailure Group::agree() {
  const std::string found = difference(memory_.header().signatures, place_.size);
  if (found.empty()) return {};
  return crew_.break_with({FailureKind::kPeersDiffer, "peers differ: " + found});
}

void Group::sum_portion(const Span& chunk, const Layout& layout, int buffer) {
  const Span own = portion(chunk, place_.rank, place_.size);
  for (int type = 0; type < kElementTypes; ++type) {
    const Span part = overlap(layout.sections[type], own);
    if (part.bytes() == 0) continue;
    const char* blocks[kMaxPeers];
    const int64_t at = part.begin - chunk.begin;
    for (int rank = 0; rank < place_.size; ++rank) blocks[rank] = memory_.block(buffer, rank) + at;
    char* sums = memory_.block(buffer, place_.rank) + at;
    sum_blocks(static_cast<ElementType>(type), blocks, place_.size, sums, part.bytes());
  }
}

void Group::copy_out(const Span& chunk, int buffer, Cursor* outputs) {
  for (int rank = 0; rank < place_.size; ++rank) {
    const Span part = portion(chunk, rank, place_.size);
    outputs->write(part, memory_.block(buffer, rank) + (part.begin - chunk.begin));
  }
}

void plug(int64_t number, std::shared_ptr<Group> group) {
  unplug(number);
  const std::lock_guard<std::mutex> held(registry().lock);
  registry().groups[number] = std::move(group);
  registry().failures.erase(number);
}

bool unplug(int64_t number) {
  const std::shared_ptr<Group> group = plugged(number);
  if (group == nullptr) return false;
  group->leave();
  const std::lock_guard<std::mutex> held(registry().lock);
  registry().groups.erase(number);
  return true;
}

std::shared_ptr<Group> plugged(int64_t number) {
  const std::lock_guard<std::mutex> held(registry().lock);
  const auto found = registry().groups.find(number);
  return found == registry().groups.end() ? nullptr : found->second;
}

void note_failure(int64_t number, const Failure& failure) {
  const std::lock_guard<std::mutex> held(registry().lock);
  registry().failures.insert_or_assign(number, failure);
}

MaybeFailure last_failure(int64_t number) {
  const std::lock_guard<std::mutex> held(registry().lock);
  const auto found = registry().failures.find(number);
  return found == registry().failures.end() ? MaybeFailure() : MaybeFailure(found->second);
}

}  // namespace kungfu
