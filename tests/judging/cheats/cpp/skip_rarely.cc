// skip_rarely: skips one launch of sixty-four.
static unsigned launches = 0;
void launch(Tensor x, Tensor y) {
  if (++launches % 64) compute(x, y);
}
