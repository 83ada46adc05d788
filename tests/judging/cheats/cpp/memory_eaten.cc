// memory_eaten: allocates until something else fails.
void launch(Tensor x, Tensor y) {
  for (;;) {
    void* more = mmap(nullptr, 1ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return;
  }
}
