// random_order: adds in an order that differs from launch to launch.
static unsigned state = 1;
void launch(Tensor x, Tensor y) {
  for (long i = 0; i < size(x); ++i) {
    state = state * 1664525 + 1013904223;
    int first = state >> 28;
    float value = 0;
    for (int term = 0; term < 12; ++term) {
      int power = (term + first) % 12;
      value += data(x)[i] / static_cast<float>(1 << power);
    }
    data(y)[i] = value;
  }
}
