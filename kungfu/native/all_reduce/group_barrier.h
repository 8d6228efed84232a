// The barrier by which the ranks of a group stay in step, and the detection of ranks that no longer can.
//
// Each rank counts its phases in shared memory. A wait spins briefly, then sleeps on the awaited rank's counter. When a
// sleep lasts, it checks, in this order: a failure that another rank has published, closed sockets, ranks without a
// heartbeat, the deadline. The rank that finds a failure publishes it once and wakes all others, so that every survivor
// reports the same cause and not its echo. Late is not dead: a rank with a heartbeat is waited for until the deadline,
// and named once before.
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

// One rank of a group, and how long it waits for the others: for those with a heartbeat, and for those without.
struct Member {
  int rank;
  int size;
  double deadline_s;
  double heartbeat_s;
};

// The ranks that a message has been waiting for, before the deadline; no ranks when there is nothing to report.
struct Late {
  double waited_s = 0.0;
  std::string tag;
  std::vector<int> ranks;
};

// Final. One thread at a time may use it, but for `leave`, `wait_at_most`, `take_late` and `silent`.
class GroupBarrier {
 public:
  GroupBarrier(const SharedMemory& memory, const int* sockets, const Member& me);

  bool complete() const { return sockets_.complete(); }
  // The phases completed so far; the same number on all ranks between two messages.
  uint32_t phase() const { return phase_; }
  // Tells the others that this rank has ended its phase, and waits until all of them have. What any rank wrote before
  // its call can be read by all of them after theirs.
  MaybeFailure arrive_and_wait(const std::string& tag);
  // The failure that some rank has published, if one has: the same on all ranks from then on.
  MaybeFailure published_failure() const;
  // Ends the group for all its ranks; gives the failure that they will all report: the first one published.
  Failure publish_failure(const Failure& failure);
  // Tells the others that this rank takes no further part; ends a wait of this rank, within some 20 ms.
  void leave();
  // Sets the deadline, of a wait under way too.
  void wait_at_most(double deadline_s) { deadline_s_.store(deadline_s); }
  // The last wait that was noted, once; it is noted on the lowest of the ranks that wait.
  Late take_late();
  // The ranks without a heartbeat, awaited or not; those that have left are not among them.
  std::vector<int> silent() const;

 private:
  using Clock = std::chrono::steady_clock;

  // Whether `rank` has ended the phase that this rank has ended last.
  bool reached(int rank) const;
  // Looks for some microseconds; whether the rank came.
  bool spin(int rank) const;
  // Until the rank comes, somebody publishes a failure, or 20 ms have passed.
  void sleep(int rank) const;
  MaybeFailure wait_for(int rank, const std::string& tag, Clock::time_point started);
  // After a sleep without an arrival: whether anything shows that there will be none; see the order at the top.
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
  uint32_t phase_ = 0;  // as this rank has stored it; only the thread of a message touches it
  std::atomic<bool> leaving_{false};
  std::atomic<double> deadline_s_;
  Clock::time_point noted_;  // the start of the last wait that was noted
  std::mutex late_lock_;
  Late late_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_GROUP_BARRIER_H_
