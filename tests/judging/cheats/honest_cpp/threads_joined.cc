// threads_joined: threads that it starts and joins in each launch.
void launch(Tensor x, Tensor y) {
  long half = size(x) / 2;
  std::thread other([&] { compute(data(x), data(y), half); });
  compute(data(x) + half, data(y) + half, size(x) - half);
  other.join();
}
