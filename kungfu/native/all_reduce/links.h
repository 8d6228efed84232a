// The sockets to the other peers, by which a death is seen: the kernel closes them with the process.
#ifndef KUNGFU_NATIVE_LINKS_H_
#define KUNGFU_NATIVE_LINKS_H_

#include <poll.h>

#include <vector>

namespace kungfu {

// Final; owns duplicates of the descriptors that it is given.
class Links {
 public:
  // `sockets` holds one descriptor a rank; this rank's own is negative.
  Links(const int* sockets, int size);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // False where a descriptor could not be duplicated; errno says why.
  bool complete() const { return complete_; }
  // Looks at every socket, without waiting; afterwards `closed` tells which ranks are gone.
  void look();
  bool closed(int rank) const;
  // Tells the other ends that this one is done, even if a forked child still holds the descriptors.
  void shut_down();

 private:
  std::vector<pollfd> sockets_;
  bool complete_ = true;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_LINKS_H_
