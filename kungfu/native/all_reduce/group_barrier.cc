#include "group_barrier.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "futex.h"

namespace kungfu {
namespace {

// How long a wait sleeps before it checks the group again: the longest delay until a death is noticed.
constexpr long kSleepNs = 20'000'000;

// An iteration takes some tens of cycles. If every rank has a core, the other ranks are about to arrive; if there are
// more ranks than cores, spinning only keeps the awaited rank from running.
constexpr int kSpinsWithCores = 2000;
constexpr int kSpinsWithoutCores = 20;

// The states of `SharedFailure`, in their order; a state never changes to an earlier state.
constexpr uint32_t kWhole = 0, kWriting = 1, kBroken = 2;

// A wait is noted after a part of its deadline, but neither immediately nor so late that no user watches any more.
constexpr double kNotedAfter = 0.25, kNotedAfterLeastS = 2.0, kNotedAfterMostS = 15.0;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

std::string in_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

}  // namespace

GroupBarrier::GroupBarrier(const SharedMemory& memory, const int* sockets, const Member& me)
    : memory_(memory),
      sockets_(sockets, me.size),
      me_(me),
      spins_(cores() >= me.size ? kSpinsWithCores : kSpinsWithoutCores),
      heartbeat_(memory.mapped() ? std::make_unique<Heartbeat>(memory, me.rank, me.size) : nullptr),
      deadline_s_(me.deadline_s) {}

MaybeFailure GroupBarrier::arrive_and_wait(const std::string& tag) {
  Progress& own = memory_.header().progress[me_.rank];
  // This store publishes the block that this rank wrote, for which a release would suffice. It is sequentially
  // consistent because it must not move after the load of `sleepers` below, which a release would allow.
  own.phase.store(++phase_, std::memory_order_seq_cst);
  // A rank that sleeps on the old phase has counted itself first: at least one of the two ranks sees the other.
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) wake_all_on(&own.phase);
  const Clock::time_point started = Clock::now();
  for (int rank = 0; rank < me_.size; ++rank) {
    if (rank == me_.rank) continue;
    // All ranks have one start: the deadline applies to the whole barrier.
    if (MaybeFailure failure = wait_for(rank, tag, started)) return failure;
  }
  return {};
}

bool GroupBarrier::reached(int rank) const {
  // Acquire: a reader of the phase also sees the block that its rank wrote before.
  const uint32_t theirs = memory_.header().progress[rank].phase.load(std::memory_order_acquire);
  return static_cast<int32_t>(theirs - phase_) >= 0;  // the counter may wrap
}

bool GroupBarrier::spin(int rank) const {
  for (int turn = 0; turn < spins_; ++turn) {
    if (reached(rank)) return true;
    pause();  // for some cycles, the other thread of this core can use all its units
  }
  return reached(rank);
}

void GroupBarrier::sleep(int rank) const {
  Progress& theirs = memory_.header().progress[rank];
  // This rank counts itself before it reads the phase; the other rank stores its phase before it reads the count.
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = theirs.phase.load(std::memory_order_seq_cst);
  // The rank may have arrived after the spin and before we counted ourselves as a sleeper: it would not wake us.
  if (!reached(rank)) sleep_on(&theirs.phase, seen, kSleepNs);
  theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

MaybeFailure GroupBarrier::wait_for(int rank, const std::string& tag, Clock::time_point started) {
  if (spin(rank)) return {};  // the usual case: all ranks arrive within microseconds
  while (true) {
    sleep(rank);
    // The rank has arrived. A failure that is published meanwhile ends the next wait, or the next message.
    if (reached(rank)) return {};
    if (MaybeFailure failure = check_group(tag, started)) return failure;
  }
}

MaybeFailure GroupBarrier::check_group(const std::string& tag, Clock::time_point started) {
  // Another rank found a cause first: report that cause.
  if (MaybeFailure failure = published_failure()) return failure;
  // This process closes the group in another thread; the others see it leave, and nothing is published.
  if (leaving_.load()) return Failure{FailureKind::kClosed, "the group was closed during " + tag};
  sockets_.poll_all();
  for (int rank = 0; rank < me_.size; ++rank) {
    // This wait is not for a rank that had reached this phase before it ended.
    if (rank == me_.rank || !sockets_.closed(rank) || reached(rank)) continue;
    // The rank is gone: it announced this before (left), or its process ended without an announcement (died).
    const char* how = memory_.header().progress[rank].left.load() != 0 ? " left during " : " died during ";
    return publish_failure({FailureKind::kPeerGone, "peer rank=" + std::to_string(rank) + how + tag, {rank}});
  }
  if (MaybeFailure failure = check_heartbeats(tag)) return failure;
  // All awaited processes run: they are late, and may still come.
  const double waited_s = std::chrono::duration<double>(Clock::now() - started).count();
  const double deadline_s = deadline_s_.load();
  if (waited_s >= deadline_s) {  // too late: this rank gives up for all
    return publish_failure({FailureKind::kLate, late_text(tag, deadline_s), missing(), waited_s});
  }
  // Late enough to be reported, and not yet reported in this wait, which has one start for all its ranks.
  const double noted_after_s = std::clamp(kNotedAfter * deadline_s, kNotedAfterLeastS, kNotedAfterMostS);
  if (waited_s >= noted_after_s && started != noted_) note_late(tag, started, waited_s);
  return {};
}

MaybeFailure GroupBarrier::check_heartbeats(const std::string& tag) {
  for (const int rank : missing()) {
    const double silent_s = heartbeat_->silent_s(rank);
    if (silent_s < me_.heartbeat_s) continue;  // its process runs: it is late at most
    const std::string who = "peer rank=" + std::to_string(rank);
    const std::string text = who + " shows no life for " + in_seconds(silent_s) + " in " + tag;
    return publish_failure({FailureKind::kPeerGone, text, {rank}});
  }
  return {};
}

void GroupBarrier::note_late(const std::string& tag, Clock::time_point started, double waited_s) {
  noted_ = started;
  for (int rank = 0; rank < me_.rank; ++rank) {
    if (reached(rank)) return;  // that rank waits too, and reports the wait
  }
  const std::lock_guard<std::mutex> held(late_lock_);
  late_ = {waited_s, tag, missing()};
}

Late GroupBarrier::take_late() {
  const std::lock_guard<std::mutex> held(late_lock_);
  return std::exchange(late_, {});
}

std::vector<int> GroupBarrier::silent() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < me_.size; ++rank) {
    if (rank == me_.rank || memory_.header().progress[rank].left.load() != 0) continue;  // no beat is expected
    if (heartbeat_->silent_s(rank) >= me_.heartbeat_s) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> GroupBarrier::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < me_.size; ++rank) {
    if (rank != me_.rank && !reached(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::string GroupBarrier::late_text(const std::string& tag, double deadline_s) const {
  std::string text = "waited " + in_seconds(deadline_s) + " in " + tag + " for ";
  const char* comma = "";
  for (const int rank : missing()) {
    text += comma + ("rank=" + std::to_string(rank));
    comma = ",";
  }
  return text;
}

MaybeFailure GroupBarrier::published_failure() const {
  const SharedFailure& shared = memory_.header().failure;
  // Acquire: a reader of kBroken also sees the kind, the ranks and the text, which were written before.
  if (shared.state.load(std::memory_order_acquire) != kBroken) return {};
  Failure failure{static_cast<FailureKind>(shared.kind), std::string(shared.text, strnlen(shared.text, kFailureBytes))};
  for (int rank = 0; rank < me_.size; ++rank) {
    if (shared.at_fault[rank] != 0) failure.ranks.push_back(rank);
  }
  failure.waited_s = shared.waited_s;
  return failure;
}

Failure GroupBarrier::publish_failure(const Failure& failure) {
  SharedFailure& shared = memory_.header().failure;
  uint32_t expected = kWhole;
  // Only the first rank writes; it wakes the sleeping ranks, so that they need not time out.
  if (shared.state.compare_exchange_strong(expected, kWriting)) {
    shared.kind = static_cast<int32_t>(failure.kind);
    shared.waited_s = failure.waited_s;
    for (const int rank : failure.ranks) shared.at_fault[rank] = 1;
    std::snprintf(shared.text, kFailureBytes, "%s", failure.text.c_str());
    // Release: no reader sees kBroken before the fields above.
    shared.state.store(kBroken, std::memory_order_release);
    for (int rank = 0; rank < me_.size; ++rank) wake_all_on(&memory_.header().progress[rank].phase);
  }
  // Another rank may be writing its own cause at this moment: wait for that cause.
  for (int turn = 0; turn < 10'000; ++turn) {
    if (MaybeFailure published = published_failure()) return *published;
    pause();
  }
  return failure;  // the rank that was first died while it wrote
}

void GroupBarrier::leave() {
  leaving_.store(true);  // ends a wait of this rank at its next check
  // The mark is set before the socket is closed: a rank that finds the socket closed can tell leaving from dying.
  memory_.header().progress[me_.rank].left.store(1);
  sockets_.shut_down();
}

}  // namespace kungfu
