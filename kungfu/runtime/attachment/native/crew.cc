#include "crew.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace kungfu {
namespace {

constexpr long kSleepNs = 20'000'000;

// A turn takes some tens of cycles. Where every peer has a core, the others are about to arrive; where peers outnumber
// cores, spinning only keeps the awaited peer off its core.
constexpr int kSpinsWithCores = 2000;
constexpr int kSpinsWithoutCores = 20;

constexpr uint32_t kWhole = 0, kWriting = 1, kBroken = 2;

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

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Crew::Crew(const SharedMemory& memory, const int* sockets, const Place& place)
    : memory_(memory),
      links_(sockets, place.size),
      place_(place),
      spins_(cores() >= place.size ? kSpinsWithCores : kSpinsWithoutCores) {}

MaybeFailure Crew::meet(const std::string& tag) {
  Progress& own = memory_.header().progress[place_.rank];
  own.phase.store(++phase_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) futex(&own.phase, FUTEX_WAKE, INT_MAX, nullptr);
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
  const timespec timeout = {0, kSleepNs};
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = theirs.phase.load(std::memory_order_seq_cst);
  if (!reached(rank)) futex(&theirs.phase, FUTEX_WAIT, seen, &timeout);
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
  if (leaving_.load()) return Failure{FailureKind::kClosed, "kungfu: the group was closed during " + tag};
  links_.look();
  for (int rank = 0; rank < place_.size; ++rank) {
    // A peer that is gone but had done its part is not what we wait for.
    if (rank == place_.rank || !links_.closed(rank) || reached(rank)) continue;
    const char* how = memory_.header().progress[rank].left.load() != 0 ? " left during " : " died during ";
    return break_with(FailureKind::kPeerGone, "kungfu: peer rank=" + std::to_string(rank) + how + tag);
  }
  const std::chrono::duration<double> waited = Clock::now() - started;
  if (waited.count() < place_.deadline_s) return {};
  return break_with(FailureKind::kLate, late_text(tag));
}

std::string Crew::late_text(const std::string& tag) const {
  char waited[32];
  std::snprintf(waited, sizeof(waited), "%.1f", place_.deadline_s);
  std::string text = std::string("kungfu: waited ") + waited + " s in " + tag + " for ";
  const char* comma = "";
  for (int rank = 0; rank < place_.size; ++rank) {
    if (reached(rank)) continue;
    text += comma + ("rank=" + std::to_string(rank));
    comma = ",";
  }
  return text;
}

MaybeFailure Crew::broken() const {
  const SharedFailure& shared = memory_.header().failure;
  if (shared.state.load(std::memory_order_acquire) != kBroken) return {};
  return Failure{static_cast<FailureKind>(shared.kind), std::string(shared.text, strnlen(shared.text, kFailureBytes))};
}

Failure Crew::break_with(FailureKind kind, const std::string& text) {
  SharedFailure& shared = memory_.header().failure;
  uint32_t expected = kWhole;
  if (shared.state.compare_exchange_strong(expected, kWriting)) {
    shared.kind = static_cast<int32_t>(kind);
    std::snprintf(shared.text, kFailureBytes, "%s", text.c_str());
    shared.state.store(kBroken, std::memory_order_release);
    wake_all();
  }
  for (int turn = 0; turn < 10'000; ++turn) {
    if (MaybeFailure failure = broken()) return *failure;
    pause();
  }
  return {kind, text};  // the peer that was first died while it wrote
}

void Crew::wake_all() const {
  for (int rank = 0; rank < place_.size; ++rank) {
    futex(&memory_.header().progress[rank].phase, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void Crew::leave() {
  leaving_.store(true);
  memory_.header().progress[place_.rank].left.store(1);
  links_.shut_down();
}

}  // namespace kungfu
