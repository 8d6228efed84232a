// The heartbeat of a group's processes: it shows that a process runs, whatever its program does meanwhile.
//
// A thread of each rank counts its beats in shared memory and reads those of the others. Silence is counted in the
// observer's own beats, not by a clock: a machine that is slow, or was asleep, keeps both from beating, and no rank is
// taken for dead over it. A process that is stopped does not beat; one that computes, or hangs, does.
#ifndef KUNGFU_NATIVE_HEARTBEAT_H_
#define KUNGFU_NATIVE_HEARTBEAT_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "shared_memory.h"

namespace kungfu {

// Final; beats from construction to destruction.
class Heartbeat {
 public:
  // `memory` is mapped and outlives this.
  Heartbeat(const SharedMemory& memory, int rank, int size);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // How long `rank` has not beaten, in seconds of this rank's own beats.
  double silent_s(int rank) const;

 private:
  // The thread: beats, sleeps, reads the beats of the others.
  void run();
  // Counts a missed beat of `rank`, or forgets those that it had missed.
  void check(int rank);

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
