// workspace_of_each_launch: memory that it maps and returns in each launch.
void launch(Tensor x, Tensor y) {
  void* space = mmap(nullptr, bytes(y), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  compute(data(x), static_cast<float*>(space), size(x));
  std::memcpy(data(y), space, bytes(y));
  munmap(space, bytes(y));
}
