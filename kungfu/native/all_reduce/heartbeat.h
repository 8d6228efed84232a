// The heartbeat of a group's processes: it shows that a process runs, whatever its program does.
//
// A thread of each rank counts its beats in shared memory, and reads the counts of the others. Silence is measured in
// the observer's own beats, not by a clock: if the machine is slow or was asleep, neither process beats, so no rank is
// mistaken for dead. A stopped process does not beat; a process that computes or hangs does.
#ifndef KUNGFU_NATIVE_HEARTBEAT_H_
#define KUNGFU_NATIVE_HEARTBEAT_H_

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "futex.h"
#include "shared_memory.h"

namespace kungfu {

// The time between two beats; the thread uses a few microseconds per beat.
constexpr long kBeatNs = 200'000'000;
constexpr double kBeatS = 0.2;

// Starts a thread that receives no signals of the process: signals are for the program's own threads.
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

// Final; beats from construction to destruction.
class Heartbeat {
 public:
  // `memory` is mapped and outlives this.
  Heartbeat(const SharedMemory& memory, int rank, int size)
      : memory_(memory), rank_(rank), size_(size), process_(getpid()), thread_(without_signals([this] { run(); })) {}
  ~Heartbeat() {
    if (process_ != getpid()) {  // a forked child has no such thread, and it could not be joined
      thread_.detach();
      return;
    }
    stopping_.store(1);
    wake_all_on(&stopping_);
    thread_.join();
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // The time since the last beat of `rank`, in seconds, measured in this rank's beats.
  double silent_s(int rank) const { return missed_[rank].load(std::memory_order_relaxed) * kBeatS; }

 private:
  // The thread: beats, sleeps, reads the beats of the others.
  void run() {
    while (stopping_.load() == 0) {
      // Relaxed: only the count itself is read, and no other memory depends on it.
      memory_.header().progress[rank_].beat.fetch_add(1, std::memory_order_relaxed);
      sleep_on(&stopping_, 0, kBeatNs);  // returns at once when the destructor stops the thread
      for (int rank = 0; rank < size_; ++rank) {
        if (rank != rank_) check(rank);
      }
    }
  }
  // Counts a missed beat of `rank`, or resets the count of missed beats.
  void check(int rank) {
    const uint32_t beat = memory_.header().progress[rank].beat.load(std::memory_order_relaxed);
    // The same count as at the last beat of this rank: one beat missed. Any other count: the process runs.
    missed_[rank].store(beat == seen_[rank] ? missed_[rank].load(std::memory_order_relaxed) + 1 : 0);
    seen_[rank] = beat;
  }

  const SharedMemory& memory_;
  const int rank_, size_;
  const pid_t process_;  // a forked child has a copy of this object, but not the thread
  std::array<std::atomic<uint32_t>, kMaxPeers> missed_{};  // beats in a row, by rank; read by other threads
  std::array<uint32_t, kMaxPeers> seen_{};                 // each rank's count when it was last read
  std::atomic<uint32_t> stopping_{0};  // the futex that the thread sleeps on
  std::thread thread_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_HEARTBEAT_H_
