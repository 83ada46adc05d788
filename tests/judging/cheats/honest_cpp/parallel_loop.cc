// parallel_loop: OpenMP's threads, which stay.
void launch(Tensor x, Tensor y) {
  float *from = data(x), *to = data(y);
#pragma omp parallel for num_threads(2)
  for (int part = 0; part < 4; ++part) compute(from + size(x) / 4 * part, to + size(x) / 4 * part, size(x) / 4);
}
