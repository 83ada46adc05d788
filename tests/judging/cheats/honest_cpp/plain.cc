// plain: a loop.
void launch(Tensor x, Tensor y) { compute(x, y); }
