// flush_to_zero: another floating-point environment, which it puts back.
void launch(Tensor x, Tensor y) {
  unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  compute(x, y);
  _mm_setcsr(before);
}
