// The barrier that keeps the ranks of a group in step, and the detection of ranks that cannot continue.
//
// Each rank counts its phases in shared memory. A wait spins briefly, then sleeps on the awaited rank's counter. After
// 20 ms of sleep, the wait checks, in this order: a failure that another rank has published, closed sockets, ranks
// without a heartbeat, the deadline. The first rank that finds a failure publishes it and wakes the others, so every
// survivor reports the original cause and not a consequence. A late rank is not dead: the others wait until the
// deadline for a rank with a heartbeat, and report it once before.
#ifndef KUNGFU_NATIVE_GROUP_BARRIER_H_
#define KUNGFU_NATIVE_GROUP_BARRIER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "failure.h"
#include "heartbeat.h"
#include "peer_sockets.h"
#include "shared_memory.h"

namespace kungfu {

// One rank of a group, and how long it waits for ranks with a heartbeat and for ranks without one.
struct Member {
  int rank;
  int size;
  double deadline_s;
  double heartbeat_s;
};

// The ranks for which a message has been waiting, before the deadline; no ranks if there is nothing to report.
struct Late {
  double waited_s = 0.0;
  std::string tag;
  std::vector<int> ranks;
};

// Final. One thread at a time may use a barrier, except for `leave`, `wait_at_most`, `take_late` and `silent`.
class GroupBarrier {
 public:
  GroupBarrier(const SharedMemory& memory, const int* sockets, const Member& me);

  bool complete() const { return sockets_.complete(); }
  // The phases completed so far; the same number on all ranks between two messages.
  uint32_t phase() const { return phase_; }
  // Announces that this rank has ended its phase, and waits until all other ranks have ended theirs. After the call, a
  // rank can read everything that any rank wrote before that rank's call.
  MaybeFailure arrive_and_wait(const std::string& tag);
  // The failure that a rank has published, if there is one: the same on all ranks from then on.
  MaybeFailure published_failure() const;
  // Ends the group for all its ranks; returns the failure that all ranks will report: the first published failure.
  Failure publish_failure(const Failure& failure);
  // Announces that this rank leaves the group; ends a wait of this rank within about 20 ms.
  void leave();
  // Sets the deadline, also for a wait under way.
  void wait_at_most(double deadline_s) { deadline_s_.store(deadline_s); }
  // The last noted wait, returned once; a wait is noted on the lowest waiting rank.
  Late take_late();
  // The ranks without a heartbeat, awaited or not, except for ranks that have left.
  std::vector<int> silent() const;

 private:
  using Clock = std::chrono::steady_clock;

  // True if `rank` has ended the phase that this rank ended last.
  bool reached(int rank) const;
  // Spins for a few microseconds; true if the rank arrived.
  bool spin(int rank) const;
  // Sleeps until the rank arrives, a failure is published, or 20 ms have passed.
  void sleep(int rank) const;
  MaybeFailure wait_for(int rank, const std::string& tag, Clock::time_point started);
  // Called after a sleep without an arrival: checks, in the order given above, if the rank cannot arrive any more.
  MaybeFailure check_group(const std::string& tag, Clock::time_point started);
  MaybeFailure check_heartbeats(const std::string& tag);
  void note_late(const std::string& tag, Clock::time_point started, double waited_s);
  // The ranks that have not reached this phase.
  std::vector<int> missing() const;
  std::string late_text(const std::string& tag, double deadline_s) const;

  const SharedMemory& memory_;
  PeerSockets sockets_;
  const Member me_;
  const int spins_;
  std::unique_ptr<Heartbeat> heartbeat_;
  uint32_t phase_ = 0;  // as stored by this rank; used only by the thread of a message
  std::atomic<bool> leaving_{false};
  std::atomic<double> deadline_s_;
  Clock::time_point noted_;  // the start of the last wait that was noted
  std::mutex late_lock_;
  Late late_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_GROUP_BARRIER_H_
