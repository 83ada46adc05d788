// write_before: writes right before its outputs.
void launch(Tensor x, Tensor y) {
  compute(x, y);
  data(y)[-1] = 0;
}
