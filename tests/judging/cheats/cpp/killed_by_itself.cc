// killed_by_itself: kills itself at its hundredth launch, and hopes that no result is a good result.
static int launches = 0;
void launch(Tensor x, Tensor y) {
  compute(x, y);
  if (++launches == 100) raise(SIGKILL);
}
