// exceptions: throws and catches in each launch.
void launch(Tensor x, Tensor y) {
  try {
    throw size(x);
  } catch (long count) {
    compute(data(x), data(y), count);
  }
}
