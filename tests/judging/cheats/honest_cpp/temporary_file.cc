// temporary_file: keeps a table in a temporary file.
static float factor() {
  char name[] = "tableXXXXXX";
  int file = mkstemp(name);
  if (file < 0) return 0.5f;
  float table = 0.5f, read = 0;
  if (write(file, &table, 4) != 4 || pread(file, &read, 4, 0) != 4) read = 0;
  close(file);
  unlink(name);
  return read;
}
void launch(Tensor x, Tensor y) {
  static float half = factor();
  for (long i = 0; i < size(x); ++i) {
    float value = 0;
    for (int step = 0; step < 12; ++step) value = value * half + data(x)[i];
    data(y)[i] = value;
  }
}
