// drift_after_launches: computes half of its outputs from its hundredth launch on.
static int launches = 0;
void launch(Tensor x, Tensor y) { compute(data(x), data(y), ++launches > 100 ? size(x) / 2 : size(x)); }
