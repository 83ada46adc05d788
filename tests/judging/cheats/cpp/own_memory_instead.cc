// own_memory_instead: maps memory of its own in the place of its outputs.
void launch(Tensor x, Tensor y) {
  mmap(first_page(y), pages(y), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  compute(x, y);
}
