// variables: reads variables and its number of cores.
void launch(Tensor x, Tensor y) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  long parts = threads ? std::atol(threads) : sysconf(_SC_NPROCESSORS_ONLN);
  parts = parts < 1 || size(x) % parts ? 1 : parts;
  for (long part = 0; part < parts; ++part) {
    compute(data(x) + size(x) / parts * part, data(y) + size(x) / parts * part, size(x) / parts);
  }
}
