// How the peers of a group keep in step, and learn that they no longer can.
//
// Each rank counts its phases in shared memory. A wait spins briefly, then sleeps on the awaited rank's counter; when a
// sleep lasts, it looks for a failure that another peer has published, for closed sockets, for ranks without a beat, and
// at the deadline. Whoever finds a failure publishes it once and wakes all, so that every survivor reports the same
// cause, not its echo. Late is not dead: a rank that beats is waited for until the deadline, and named once before.
#ifndef KUNGFU_NATIVE_CREW_H_
#define KUNGFU_NATIVE_CREW_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "failure.h"
#include "heart.h"
#include "links.h"
#include "shared_memory.h"

namespace kungfu {

// One peer's place in a group, and how long it waits for the others: for those that beat, and for those that do not.
struct Place {
  int rank;
  int size;
  double deadline_s;
  double heartbeat_s;
};

// Those that a message waits for, not yet for too long; no ranks when there is nothing to say.
struct Late {
  double waited_s = 0.0;
  std::string tag;
  std::vector<int> ranks;
};

// Final. One thread at a time may use it, but for `leave`, `wait_at_most`, `take_late` and `silent`.
class Crew {
 public:
  Crew(const SharedMemory& memory, const int* sockets, const Place& place);

  bool complete() const { return links_.complete(); }
  // The phases completed so far; the same number on all ranks between two messages.
  uint32_t phase() const { return phase_; }
  // Tells the others that this rank has ended its phase, and waits until all of them have.
  MaybeFailure meet(const std::string& tag);
  // The failure that has broken the group, if one has.
  MaybeFailure broken() const;
  // Breaks the group for all its peers; gives the failure that they will all report.
  Failure break_with(const Failure& failure);
  // Tells the others that this rank takes no further part; ends a wait of this rank.
  void leave();
  // Sets the deadline, of a wait under way too.
  void wait_at_most(double deadline_s) { deadline_s_.store(deadline_s); }
  // The last wait that lasts, once; told to the lowest of the ranks that wait.
  Late take_late();
  // The ranks that show no life, awaited or not; those that have left are not among them.
  std::vector<int> silent() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool reached(int rank) const;
  bool spin(int rank) const;
  void sleep(int rank) const;
  MaybeFailure wait_for(int rank, const std::string& tag, Clock::time_point started);
  MaybeFailure look_around(const std::string& tag, Clock::time_point started);
  MaybeFailure look_for_life(const std::string& tag);
  void note_late(const std::string& tag, Clock::time_point started, double waited_s);
  std::vector<int> missing() const;
  std::string late_text(const std::string& tag, double deadline_s) const;
  void wake_all() const;

  const SharedMemory& memory_;
  Links links_;
  const Place place_;
  const int spins_;
  std::unique_ptr<Heart> heart_;
  uint32_t phase_ = 0;
  std::atomic<bool> leaving_{false};
  std::atomic<double> deadline_s_;
  Clock::time_point noted_;  // the start of the last wait that was noted
  std::mutex late_lock_;
  Late late_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_CREW_H_
