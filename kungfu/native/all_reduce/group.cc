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
  std::map<int64_t, Failure> failures;  // the failure of the last message, which outlives the group
};

Registry& registry() {
  static Registry* const only = new Registry;  // never destroyed: an op may outlast the end of main
  return *only;
}

}  // namespace

Group::Group(int memory_descriptor, const int* sockets, const Member& me)
    : me_(me), memory_(memory_descriptor, me.size), barrier_(memory_, sockets, me) {}

std::string Group::setup_error() const {
  if (!memory_.mapped()) return std::string("the shared memory cannot be mapped: ") + std::strerror(errno);
  if (!barrier_.complete()) return std::string("a peer's socket cannot be kept: ") + std::strerror(errno);
  return "";
}

MaybeFailure Group::all_reduce(const std::string& tag, std::vector<TensorPart>* parts, Norms* norms) {
  const std::lock_guard<std::mutex> held(one_message_);
  const ExactArithmetic exact;
  // A broken group stays broken: every later message fails for the same reason, on all ranks.
  if (MaybeFailure failure = barrier_.published_failure()) return failure;
  const Layout layout = lay_out(parts);
  write_signature(tag, *parts, layout, &memory_.header().signatures[me_.rank]);
  MessageCursor inputs(*parts, norms), outputs(*parts, norms);
  Span chunk;
  // An empty message takes one round too, in which the ranks meet and compare the message.
  do {
    chunk = {chunk.end, std::min(chunk.end + kBlockBytes, layout.bytes)};
    const int buffer = barrier_.phase() / 2 % 2;  // two phases per chunk, and the two buffers in turn
    inputs.read(chunk, memory_.block(buffer, me_.rank));
    if (MaybeFailure failure = barrier_.arrive_and_wait(tag)) return failure;
    // After the first barrier every rank has written its signature: compare them before anything is summed.
    if (chunk.begin == 0) {
      if (MaybeFailure failure = compare_signatures()) return failure;
    }
    sum_portion(chunk, layout, buffer);
    if (MaybeFailure failure = barrier_.arrive_and_wait(tag)) return failure;
    copy_out(chunk, buffer, &outputs);
  } while (chunk.end < layout.bytes);
  return {};
}

MaybeFailure Group::compare_signatures() {
  const std::string found = difference(memory_.header().signatures, me_.size);
  if (found.empty()) return {};
  return barrier_.publish_failure({FailureKind::kPeersDiffer, "peers differ: " + found});
}

void Group::sum_portion(const Span& chunk, const Layout& layout, int buffer) {
  const Span own = portion(chunk, me_.rank, me_.size);
  for (int type = 0; type < kElementTypes; ++type) {
    const Span part = overlap(layout.sections[type], own);
    if (part.bytes() == 0) continue;  // no element of this type in our portion
    const char* blocks[kMaxPeers];
    const int64_t at = part.begin - chunk.begin;
    for (int rank = 0; rank < me_.size; ++rank) blocks[rank] = memory_.block(buffer, rank) + at;
    char* sums = memory_.block(buffer, me_.rank) + at;
    sum_blocks(static_cast<ElementType>(type), blocks, me_.size, sums, part.bytes());
  }
}

void Group::copy_out(const Span& chunk, int buffer, MessageCursor* outputs) {
  for (int rank = 0; rank < me_.size; ++rank) {
    const Span part = portion(chunk, rank, me_.size);
    outputs->write(part, memory_.block(buffer, rank) + (part.begin - chunk.begin));
  }
}

void register_group(int64_t number, std::shared_ptr<Group> group) {
  unregister_group(number);
  const std::lock_guard<std::mutex> held(registry().lock);
  registry().groups[number] = std::move(group);
  registry().failures.erase(number);
}

bool unregister_group(int64_t number) {
  const std::shared_ptr<Group> group = find_group(number);
  if (group == nullptr) return false;
  // An op that waits inside the group ends with a failure, and keeps the group alive until then.
  group->barrier().leave();
  const std::lock_guard<std::mutex> held(registry().lock);
  registry().groups.erase(number);
  return true;
}

std::shared_ptr<Group> find_group(int64_t number) {
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
