// skip_last_element: never writes its last element.
void launch(Tensor x, Tensor y) { compute(data(x), data(y), size(x) - 1); }
