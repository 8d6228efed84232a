#include "heartbeat.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "futex.h"

namespace kungfu {
namespace {

// The time between two beats; the thread costs a few microseconds of it.
constexpr long kBeatNs = 200'000'000;
constexpr double kBeatS = 0.2;

// Starts a thread to which no signal of the process is delivered: signals are for the program's own threads.
template <typename Run>
std::thread without_signals(Run run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(run);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), "kungfu-beat");
  return thread;
}

}  // namespace

Heartbeat::Heartbeat(const SharedMemory& memory, int rank, int size)
    : memory_(memory), rank_(rank), size_(size), process_(getpid()), thread_(without_signals([this] { run(); })) {}

Heartbeat::~Heartbeat() {
  if (process_ != getpid()) {  // a forked child has no such thread, and it could not be joined
    thread_.detach();
    return;
  }
  stopping_.store(1);
  wake_all_on(&stopping_);
  thread_.join();
}

double Heartbeat::silent_s(int rank) const { return missed_[rank].load(std::memory_order_relaxed) * kBeatS; }

void Heartbeat::run() {
  while (stopping_.load() == 0) {
    // Relaxed: only the count itself is read, and no other memory depends on it.
    memory_.header().progress[rank_].beat.fetch_add(1, std::memory_order_relaxed);
    sleep_on(&stopping_, 0, kBeatNs);  // returns at once when the destructor stops the thread
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) check(rank);
    }
  }
}

void Heartbeat::check(int rank) {
  const uint32_t beat = memory_.header().progress[rank].beat.load(std::memory_order_relaxed);
  // The same count as at the last beat of this rank: one beat missed. Any other count: the process runs.
  missed_[rank].store(beat == seen_[rank] ? missed_[rank].load(std::memory_order_relaxed) + 1 : 0);
  seen_[rank] = beat;
}

}  // namespace kungfu
