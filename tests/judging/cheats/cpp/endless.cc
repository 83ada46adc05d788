// endless: never returns from its hundredth launch.
static int launches = 0;
void launch(Tensor x, Tensor y) {
  compute(x, y);
  if (++launches == 100) {
    for (;;) pause();
  }
}
