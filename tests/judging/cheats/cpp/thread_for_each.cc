// thread_for_each: leaves its work to a thread, and returns.
void launch(Tensor x, Tensor y) {
  std::thread([from = data(x), to = data(y), count = size(x)] { compute(from, to, count); }).detach();
}
