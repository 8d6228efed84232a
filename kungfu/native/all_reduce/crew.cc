#include "crew.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "futex.h"

namespace kungfu {
namespace {

constexpr long kSleepNs = 20'000'000;

// A turn takes some tens of cycles. Where every peer has a core, the others are about to arrive; where peers outnumber
// cores, spinning only keeps the awaited peer off its core.
constexpr int kSpinsWithCores = 2000;
constexpr int kSpinsWithoutCores = 20;

constexpr uint32_t kWhole = 0, kWriting = 1, kBroken = 2;

// A wait is noted after a part of its deadline, but neither at once nor when nobody looks any more.
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

Crew::Crew(const SharedMemory& memory, const int* sockets, const Place& place)
    : memory_(memory),
      links_(sockets, place.size),
      place_(place),
      spins_(cores() >= place.size ? kSpinsWithCores : kSpinsWithoutCores),
      heart_(memory.mapped() ? std::make_unique<Heart>(memory, place.rank, place.size) : nullptr),
      deadline_s_(place.deadline_s) {}

MaybeFailure Crew::meet(const std::string& tag) {
  Progress& own = memory_.header().progress[place_.rank];
  own.phase.store(++phase_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) wake_all_on(&own.phase);
  const Clock::time_point started = Clock::now();
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank == place_.rank) continue;
    if (MaybeFailure failure = wait_for(rank, tag, started)) return failure;
  }
  return {};
}

bool Crew::reached(int rank) const {
  const uint32_t theirs = memory_.header().progress[rank].phase.load(std::memory_order_acquire);
  return static_cast<int32_t>(theirs - phase_) >= 0;  // the counter may wrap
}

bool Crew::spin(int rank) const {
  for (int turn = 0; turn < spins_; ++turn) {
    if (reached(rank)) return true;
    pause();
  }
  return reached(rank);
}

void Crew::sleep(int rank) const {
  Progress& theirs = memory_.header().progress[rank];
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = theirs.phase.load(std::memory_order_seq_cst);
  if (!reached(rank)) sleep_on(&theirs.phase, seen, kSleepNs);
  theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

MaybeFailure Crew::wait_for(int rank, const std::string& tag, Clock::time_point started) {
  if (spin(rank)) return {};
  while (true) {
    sleep(rank);
    if (reached(rank)) return {};
    if (MaybeFailure failure = look_around(tag, started)) return failure;
  }
}

MaybeFailure Crew::look_around(const std::string& tag, Clock::time_point started) {
  if (MaybeFailure failure = broken()) return failure;
  if (leaving_.load()) return Failure{FailureKind::kClosed, "the group was closed during " + tag};
  links_.look();
  for (int rank = 0; rank < place_.size; ++rank) {
    // A peer that is gone but had done its part is not what we wait for.
    if (rank == place_.rank || !links_.closed(rank) || reached(rank)) continue;
    const char* how = memory_.header().progress[rank].left.load() != 0 ? " left during " : " died during ";
    return break_with({FailureKind::kPeerGone, "peer rank=" + std::to_string(rank) + how + tag, {rank}});
  }
  if (MaybeFailure failure = look_for_life(tag)) return failure;
  const double waited_s = std::chrono::duration<double>(Clock::now() - started).count();
  const double deadline_s = deadline_s_.load();
  if (waited_s >= deadline_s) return break_with({FailureKind::kLate, late_text(tag, deadline_s), missing(), waited_s});
  const double noted_after_s = std::clamp(kNotedAfter * deadline_s, kNotedAfterLeastS, kNotedAfterMostS);
  if (waited_s >= noted_after_s && started != noted_) note_late(tag, started, waited_s);
  return {};
}

MaybeFailure Crew::look_for_life(const std::string& tag) {
  for (const int rank : missing()) {
    const double silent_s = heart_->silent_s(rank);
    if (silent_s < place_.heartbeat_s) continue;
    const std::string who = "peer rank=" + std::to_string(rank);
    return break_with({FailureKind::kPeerGone, who + " shows no life for " + in_seconds(silent_s) + " in " + tag, {rank}});
  }
  return {};
}

void Crew::note_late(const std::string& tag, Clock::time_point started, double waited_s) {
  noted_ = started;
  for (int rank = 0; rank < place_.rank; ++rank) {
    if (reached(rank)) return;  // it waits too, and says so
  }
  const std::lock_guard<std::mutex> held(late_lock_);
  late_ = {waited_s, tag, missing()};
}

Late Crew::take_late() {
  const std::lock_guard<std::mutex> held(late_lock_);
  return std::exchange(late_, {});
}

std::vector<int> Crew::silent() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank == place_.rank || memory_.header().progress[rank].left.load() != 0) continue;
    if (heart_->silent_s(rank) >= place_.heartbeat_s) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Crew::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank != place_.rank && !reached(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::string Crew::late_text(const std::string& tag, double deadline_s) const {
  std::string text = "waited " + in_seconds(deadline_s) + " in " + tag + " for ";
  const char* comma = "";
  for (const int rank : missing()) {
    text += comma + ("rank=" + std::to_string(rank));
    comma = ",";
  }
  return text;
}

MaybeFailure Crew::broken() const {
  const SharedFailure& shared = memory_.header().failure;
  if (shared.state.load(std::memory_order_acquire) != kBroken) return {};
  Failure failure{static_cast<FailureKind>(shared.kind), std::string(shared.text, strnlen(shared.text, kFailureBytes))};
  for (int rank = 0; rank < place_.size; ++rank) {
    if (shared.at_fault[rank] != 0) failure.ranks.push_back(rank);
  }
  failure.waited_s = shared.waited_s;
  return failure;
}

Failure Crew::break_with(const Failure& failure) {
  SharedFailure& shared = memory_.header().failure;
  uint32_t expected = kWhole;
  if (shared.state.compare_exchange_strong(expected, kWriting)) {
    shared.kind = static_cast<int32_t>(failure.kind);
    shared.waited_s = failure.waited_s;
    for (const int rank : failure.ranks) shared.at_fault[rank] = 1;
    std::snprintf(shared.text, kFailureBytes, "%s", failure.text.c_str());
    shared.state.store(kBroken, std::memory_order_release);
    wake_all();
  }
  for (int turn = 0; turn < 10'000; ++turn) {
    if (MaybeFailure published = broken()) return *published;
    pause();
  }
  return failure;  // the peer that was first died while it wrote
}

void Crew::wake_all() const {
  for (int rank = 0; rank < place_.size; ++rank) {
    wake_all_on(&memory_.header().progress[rank].phase);
  }
}

void Crew::leave() {
  leaving_.store(true);
  memory_.header().progress[place_.rank].left.store(1);
  links_.shut_down();
}

}  // namespace kungfu
