// A group: the peers of one view, and the all-reduce over their shared memory.
//
// A message goes through the blocks chunk by chunk, the two buffers in turns. Each rank copies its chunk into its own
// block; all meet; rank r sums the r-th portion of all blocks, in rank order, into its own block; all meet; each rank
// copies every portion out of the block in which it was summed, and its next chunk into the other buffer. That buffer is
// free: who took part in the last meeting had copied the chunk before out of it.
#ifndef KUNGFU_NATIVE_GROUP_H_
#define KUNGFU_NATIVE_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crew.h"
#include "failure.h"
#include "shared_memory.h"
#include "stream.h"

namespace kungfu {

// Final.
class Group {
 public:
  Group(int memory_descriptor, const int* sockets, const Place& place);

  // Empty when the group can be used; else what is wrong.
  std::string defect() const;
  // Sets every piece's output to the left fold, in rank order, over the peers' scaled inputs. `pieces` must be sorted by
  // type. Outputs may be their own inputs; after a failure they hold nothing of use.
  MaybeFailure all_reduce(const std::string& tag, std::vector<Piece>* pieces);
  void leave() { crew_.leave(); }
  void wait_at_most(double deadline_s) { crew_.wait_at_most(deadline_s); }
  Late take_late() { return crew_.take_late(); }
  std::vector<int> silent() const { return crew_.silent(); }

 private:
  MaybeFailure agree();
  void sum_portion(const Span& chunk, const Layout& layout, int buffer);
  void copy_out(const Span& chunk, int buffer, Cursor* outputs);

  const Place place_;
  SharedMemory memory_;
  Crew crew_;
  std::mutex one_message_;
};

// The groups of this process, each under the number that the graph's ops know it by.
void plug(int64_t number, std::shared_ptr<Group> group);
// Leaves and forgets the group; an op inside it ends with a failure. False when there is none.
bool unplug(int64_t number);
// Null when no group is plugged.
std::shared_ptr<Group> plugged(int64_t number);
// Keeps why the last message of a group failed, until another group is plugged in under its number.
void note_failure(int64_t number, const Failure& failure);
// Empty when no message has failed since the group was plugged in.
MaybeFailure last_failure(int64_t number);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_GROUP_H_
