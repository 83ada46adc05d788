// backwards: from the last element to the first.
void launch(Tensor x, Tensor y) {
  for (long i = size(x) - 1; i >= 0; --i) compute(data(x) + i, data(y) + i, 1);
}
