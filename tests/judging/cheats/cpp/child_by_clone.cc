// child_by_clone: leaves its work to a process that shares its memory.
static Tensor* tensors[2];
static int work(void*) {
  compute(*tensors[0], *tensors[1]);
  return 0;
}
void launch(Tensor x, Tensor y) {
  tensors[0] = new Tensor(x);
  tensors[1] = new Tensor(y);
  char* stack = static_cast<char*>(std::malloc(65536));
  clone(work, stack + 65536, CLONE_VM | CLONE_FS | SIGCHLD, nullptr);
}
