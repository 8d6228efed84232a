// The functions that Python calls through ctypes.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "group.h"
#include "sum_of_squares.h"

// The build passes the version, because the version macros in TensorFlow's header do not compile. The mark is read from
// the file itself, so that a library for another TensorFlow is refused before it is loaded.
static const char kMark[] = "kungfu-native tensorflow=" KUNGFU_TENSORFLOW_VERSION;

extern "C" {

// The version of TensorFlow that this library was compiled for.
const char* kungfu_tensorflow_version() { return kMark + sizeof("kungfu-native tensorflow=") - 1; }

// The bytes of shared memory that a group of `size` needs; -1 if no group can have that size.
int64_t kungfu_memory_bytes(int size) { return kungfu::memory_bytes(size); }

// Connects the ops of group number `group` to the peers of a view, after leaving any group with this number.
//
// `memory_fd` refers to `memory_bytes` zeros, the same memory on all peers; `sockets` has one stream socket per rank,
// -1 for this rank. The caller keeps all descriptors. A wait longer than `deadline_s`, or for a peer without a
// heartbeat for `heartbeat_s`, ends the group with a failure. Returns 0, or 1 with the reason in `error`.
int kungfu_group_open(int64_t group, int rank, int size, int memory_fd, int64_t memory_bytes, const int* sockets,
                      double deadline_s, double heartbeat_s, char* error, int error_bytes) {
  std::string reason;
  if (rank < 0 || rank >= size || memory_bytes < 0 || memory_bytes != kungfu::memory_bytes(size)) {
    reason = "rank " + std::to_string(rank) + " of " + std::to_string(size) + " with " + std::to_string(memory_bytes) +
             " bytes; needed are " + std::to_string(kungfu::memory_bytes(size));
  } else {
    const kungfu::Member me = {rank, size, deadline_s, heartbeat_s};
    auto opened = std::make_shared<kungfu::Group>(memory_fd, sockets, me);
    reason = opened->setup_error();
    if (reason.empty()) kungfu::register_group(group, std::move(opened));
  }
  std::snprintf(error, error_bytes, "%s", kungfu::for_people(reason).c_str());
  return reason.empty() ? 0 : 1;
}

// Sets the deadline of the group's waits, also of a wait under way. Returns 1 if the group exists.
int kungfu_group_wait_at_most(int64_t group, double deadline_s) {
  const std::shared_ptr<kungfu::Group> found = kungfu::find_group(group);
  if (found != nullptr) found->barrier().wait_at_most(deadline_s);
  return found != nullptr ? 1 : 0;
}

// Returns the last noted wait, once: the number of late ranks, the first `most` of these ranks, the seconds, and the
// message. Returns 0 if there is no such wait.
int kungfu_group_late(int64_t group, int* ranks, int most, double* waited_s, char* tag, int tag_bytes) {
  const std::shared_ptr<kungfu::Group> found = kungfu::find_group(group);
  if (found == nullptr) return 0;
  const kungfu::Late late = found->barrier().take_late();
  const int count = std::min(static_cast<int>(late.ranks.size()), most);
  std::copy_n(late.ranks.begin(), count, ranks);
  *waited_s = late.waited_s;
  std::snprintf(tag, tag_bytes, "%s", late.tag.c_str());
  return count;
}

// Returns why the last message of the group failed: the number of a FailureKind, 0 if no message has failed since the
// group was opened. `ranks` receives the first `most` peers at fault, `count` their number, `waited_s` the seconds of a
// wait that reached its deadline, and `text` a text for people. The failure is available after `leave` and `close` too.
int kungfu_group_failure(int64_t group, int* ranks, int most, int* count, double* waited_s, char* text,
                         int text_bytes) {
  const kungfu::MaybeFailure failure = kungfu::last_failure(group);
  if (!failure) return 0;
  *count = std::min(static_cast<int>(failure->ranks.size()), most);
  std::copy_n(failure->ranks.begin(), *count, ranks);
  *waited_s = failure->waited_s;
  std::snprintf(text, text_bytes, "%s", kungfu::for_people(failure->text).c_str());
  return static_cast<int>(failure->kind);
}

// Returns the number of ranks without a heartbeat, awaited or not, and the first `most` of these ranks.
int kungfu_group_silent(int64_t group, int* ranks, int most) {
  const std::shared_ptr<kungfu::Group> found = kungfu::find_group(group);
  if (found == nullptr) return 0;
  const std::vector<int> silent = found->barrier().silent();
  const int count = std::min(static_cast<int>(silent.size()), most);
  std::copy_n(silent.begin(), count, ranks);
  return count;
}

// Leaves the group, but continues its heartbeat and watches the heartbeats of the others. Ops inside the group and
// later ops end with an error. Returns 1 if the group exists.
int kungfu_group_leave(int64_t group) {
  const std::shared_ptr<kungfu::Group> found = kungfu::find_group(group);
  if (found != nullptr) found->barrier().leave();
  return found != nullptr ? 1 : 0;
}

// For tests: sets whether sums of squares may use AVX2. Returns true if they use it: the processor must have it too.
int kungfu_let_squares_use_avx2(int allowed) {
  kungfu::let_squares_use_avx2(allowed != 0);
  return kungfu::squares_use_avx2() ? 1 : 0;
}

// For tests: sets whether the texts of failures are misleading.
void kungfu_make_texts_meaningless(int meaningless) { kungfu::texts_are_meaningless = meaningless != 0; }

// Leaves the group: an op inside the group ends with an error, and later ops are the identity. Returns 1 if the group
// existed.
int kungfu_group_close(int64_t group) { return kungfu::unregister_group(group) ? 1 : 0; }

}  // extern "C"
