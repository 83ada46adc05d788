// vectors: explicit vectors, with unaligned accesses.
void launch(Tensor x, Tensor y) {
  long i = 0;
  for (; i + 4 <= size(x); i += 4) {
    __m128 values = _mm_setzero_ps(), inputs = _mm_loadu_ps(data(x) + i);
    for (int step = 0; step < 12; ++step) values = _mm_add_ps(_mm_mul_ps(values, _mm_set1_ps(0.5f)), inputs);
    _mm_storeu_ps(data(y) + i, values);
  }
  compute(data(x) + i, data(y) + i, size(x) - i);
}
