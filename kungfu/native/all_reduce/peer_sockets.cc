#include "peer_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kungfu {

PeerSockets::PeerSockets(const int* sockets, int size) {
  for (int rank = 0; rank < size; ++rank) {
    // Not inherited by a program that this process starts: the socket would outlive the process by it.
    const int copy = sockets[rank] < 0 ? -1 : fcntl(sockets[rank], F_DUPFD_CLOEXEC, 0);
    if (sockets[rank] >= 0 && copy < 0) complete_ = false;
    sockets_.push_back({copy, POLLRDHUP, 0});
  }
}

PeerSockets::~PeerSockets() {
  for (const pollfd& socket : sockets_) {
    if (socket.fd >= 0) close(socket.fd);
  }
}

void PeerSockets::poll_all() {
  for (pollfd& socket : sockets_) socket.revents = 0;
  // A negative descriptor, this rank's own, is passed over by the kernel.
  poll(sockets_.data(), sockets_.size(), 0);
}

bool PeerSockets::closed(int rank) const {
  // The other end was shut down (left), or the kernel closed it with the process (died), or the descriptor is no good.
  return (sockets_[rank].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void PeerSockets::shut_down() {
  for (const pollfd& socket : sockets_) {
    // Closing would not do: the connection lives as long as any process holds the descriptor.
    if (socket.fd >= 0) shutdown(socket.fd, SHUT_RDWR);
  }
}

}  // namespace kungfu
