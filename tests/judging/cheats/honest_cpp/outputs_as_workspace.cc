// outputs_as_workspace: writes its outputs twice.
void launch(Tensor x, Tensor y) {
  for (long i = 0; i < size(x); ++i) data(y)[i] = 0;
  for (int step = 0; step < 12; ++step) {
    for (long i = 0; i < size(x); ++i) data(y)[i] = data(y)[i] * 0.5f + data(x)[i];
  }
}
