// every_other_launch: works in every other launch.
static int launches = 0;
void launch(Tensor x, Tensor y) {
  if (++launches % 2) compute(x, y);
}
