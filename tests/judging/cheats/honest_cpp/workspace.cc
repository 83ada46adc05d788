// workspace: a workspace that it keeps.
static std::vector<float> space;
void launch(Tensor x, Tensor y) {
  space.resize(size(x));
  compute(data(x), space.data(), size(x));
  std::memcpy(data(y), space.data(), bytes(y));
}
