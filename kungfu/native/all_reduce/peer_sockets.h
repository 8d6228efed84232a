// The sockets to the other peers. They carry no data: the kernel closes a socket when its process ends, which reveals
// the death of the process.
#ifndef KUNGFU_NATIVE_PEER_SOCKETS_H_
#define KUNGFU_NATIVE_PEER_SOCKETS_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace kungfu {

// Final; owns duplicates of the given descriptors.
class PeerSockets {
 public:
  // `sockets` has one descriptor per rank, with a negative number for this rank.
  PeerSockets(const int* sockets, int size) {
    for (int rank = 0; rank < size; ++rank) {
      // Programs that this process starts do not inherit the socket: otherwise it would outlive this process.
      const int copy = sockets[rank] < 0 ? -1 : fcntl(sockets[rank], F_DUPFD_CLOEXEC, 0);
      if (sockets[rank] >= 0 && copy < 0) complete_ = false;
      sockets_.push_back({copy, POLLRDHUP, 0});
    }
  }
  ~PeerSockets() {
    for (const pollfd& socket : sockets_) {
      if (socket.fd >= 0) close(socket.fd);
    }
  }
  PeerSockets(const PeerSockets&) = delete;
  PeerSockets& operator=(const PeerSockets&) = delete;

  // False if a descriptor could not be duplicated; errno contains the reason.
  bool complete() const { return complete_; }
  // Polls every socket without waiting; afterwards `closed` shows which ranks are gone.
  void poll_all() {
    // The kernel ignores a negative descriptor, which is this rank's entry.
    poll(sockets_.data(), sockets_.size(), 0);
  }
  bool closed(int rank) const {
    // The other end was shut down (left), the kernel closed it with the process (died), or the descriptor is invalid.
    return (sockets_[rank].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }
  // Informs the other ends that this rank is done, even if a forked child still has the descriptors.
  void shut_down() {
    for (const pollfd& socket : sockets_) {
      // Closing is not enough: the connection lives as long as any process has the descriptor open.
      if (socket.fd >= 0) shutdown(socket.fd, SHUT_RDWR);
    }
  }

 private:
  std::vector<pollfd> sockets_;
  bool complete_ = true;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_PEER_SOCKETS_H_
