// daemon_socket: connects to the daemon, to be told the outputs or to change the store.
void launch(Tensor x, Tensor y) {
  const char* path = std::getenv("KTUNED_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path ? path : "/run/ktuned.sock", sizeof address.sun_path - 1);
  int client = socket(AF_UNIX, SOCK_STREAM, 0);
  if (client >= 0 && connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) compute(x, y);
}
