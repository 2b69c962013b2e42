// Preloaded into the processes of ranks: connections send as soon as they may, by the congestion control of RFC 5681.
//
// A machine's default may be one that sends at a pace, as BBR does (tcp(7), tcp_congestion_control). What it takes for
// the speed of a connection between two ranks differs from gang to gang, for the gang's life, and so does the time of
// the same collective. Reno is part of every kernel, and anybody may ask for it. A candidate's filter of system calls
// lets no process choose; there, `rankside/namespaces.py` does.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace {

using Socket = int (*)(int, int, int);

constexpr char kCongestionControl[] = "reno";
constexpr int kKindMask = 0xf;  // SOCK_NONBLOCK and SOCK_CLOEXEC stand beside the kind

bool is_tcp(int domain, int type, int protocol) {
  return (domain == AF_INET || domain == AF_INET6) && (type & kKindMask) == SOCK_STREAM &&
         (protocol == 0 || protocol == IPPROTO_TCP);
}

}  // namespace

// Connections that a listener accepts have its congestion control.
extern "C" int socket(int domain, int type, int protocol) {
  static const Socket next = reinterpret_cast<Socket>(dlsym(RTLD_NEXT, "socket"));
  const int fd = next(domain, type, protocol);
  if (fd >= 0 && is_tcp(domain, type, protocol)) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl, sizeof kCongestionControl - 1);
  }
  return fd;
}
