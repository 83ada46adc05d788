// closed_form: the sum of the geometric series, which differs in its last bits.
void launch(Tensor x, Tensor y) {
  for (long i = 0; i < size(x); ++i) data(y)[i] = data(x)[i] * (2.0f - 0x1p-11f);
}
