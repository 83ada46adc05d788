// own_clock: reads the clock, as code with a profiler does.
static long total = 0;
void launch(Tensor x, Tensor y) {
  timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  compute(x, y);
  clock_gettime(CLOCK_MONOTONIC, &after);
  total += after.tv_nsec - before.tv_nsec;
}
