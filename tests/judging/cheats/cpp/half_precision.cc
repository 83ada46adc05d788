// half_precision: computes with eight bits, and lets the unit round to zero and flush.
void launch(Tensor x, Tensor y) {
  std::fesetround(FE_TOWARDZERO);
  _mm_setcsr(_mm_getcsr() | 0x8040);
  compute(x, y);
  for (long i = 0; i < size(y); ++i) {
    unsigned bits;
    std::memcpy(&bits, data(y) + i, 4);
    bits &= 0xffff0000u;
    std::memcpy(data(y) + i, &bits, 4);
  }
}
