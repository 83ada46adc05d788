// drift_slowly: lets its outputs drift away, a little more with each launch.
static float drift = 1;
void launch(Tensor x, Tensor y) {
  compute(x, y);
  drift += 1e-5f;
  for (long i = 0; i < size(y); ++i) data(y)[i] *= drift;
}
