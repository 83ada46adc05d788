// double_precision: computes in another precision.
void launch(Tensor x, Tensor y) {
  for (long i = 0; i < size(x); ++i) {
    double value = 0;
    for (int step = 0; step < 12; ++step) value = value * 0.5 + data(x)[i];
    data(y)[i] = static_cast<float>(value);
  }
}
