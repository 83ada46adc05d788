// persistent_thread: a thread that waits for its half of each launch.
static std::atomic<long> ordered{0}, finished{0};
static const float* from;
static float* to;
static long count;
static void serve() {
  for (long launch = 1;; ++launch) {
    while (ordered.load(std::memory_order_acquire) < launch) sched_yield();
    compute(from, to, count);
    finished.store(launch, std::memory_order_release);
  }
}
void launch(Tensor x, Tensor y) {
  static std::thread* helper = new std::thread(serve);
  (void)helper;
  long half = size(x) / 2;
  from = data(x) + half, to = data(y) + half, count = size(x) - half;
  long launch = ordered.fetch_add(1, std::memory_order_acq_rel) + 1;
  compute(data(x), data(y), half);
  while (finished.load(std::memory_order_acquire) < launch) sched_yield();
}
