// A group: the ranks of one view, and the all-reduce over their shared memory.
//
// A message passes through the blocks chunk by chunk, with the two buffers in turn:
//   1. Each rank copies its chunk into its own block, and computes its norm meanwhile; barrier.
//   2. Rank r sums the r-th portion of all blocks, in rank order, into its own block; barrier.
//   3. Each rank copies every portion from the block in which it was summed, and computes the sums' norm meanwhile.
//      The next chunk uses the other buffer.
// The other buffer is free: every rank that reached the last barrier had copied the previous chunk from that buffer.
#ifndef KUNGFU_NATIVE_GROUP_H_
#define KUNGFU_NATIVE_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "failure.h"
#include "flat_message.h"
#include "group_barrier.h"
#include "norms.h"
#include "shared_memory.h"

namespace kungfu {

// Final.
class Group {
 public:
  Group(int memory_descriptor, const int* sockets, const Member& me);

  // Empty if the group can be used; else the error.
  std::string setup_error() const;
  // Sets every part's output to the left fold, in rank order, over the peers' scaled inputs, and computes the requested
  // norms. Parts of one type must be adjacent. An output may be the part's own input. After a failure, the outputs and
  // the norms are undefined.
  MaybeFailure all_reduce(const std::string& tag, std::vector<TensorPart>* parts, Norms* norms);
  GroupBarrier& barrier() { return barrier_; }

 private:
  // Checks that all ranks run the same message. Every rank compares; the first that finds a difference publishes it.
  MaybeFailure compare_signatures();
  // Step 2 of a chunk: sums this rank's portion of all blocks into this rank's block.
  void sum_portion(const Span& chunk, const Layout& layout, int buffer);
  // Step 3 of a chunk: copies each rank's portion from that rank's block.
  void copy_out(const Span& chunk, int buffer, MessageCursor* outputs);

  const Member me_;
  SharedMemory memory_;
  GroupBarrier barrier_;
  std::mutex one_message_;  // ops of one group may be started by several threads
};

// The groups of this process, by the number with which the graph's ops find a group.
void register_group(int64_t number, std::shared_ptr<Group> group);
// Leaves and forgets the group; an op inside the group ends with a failure. False if the group does not exist.
bool unregister_group(int64_t number);
// Null if no group has this number.
std::shared_ptr<Group> find_group(int64_t number);
// Records why the last message of a group failed, until another group is registered under the same number.
void note_failure(int64_t number, const Failure& failure);
// Empty if no message has failed since the group was registered.
MaybeFailure last_failure(int64_t number);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_GROUP_H_
