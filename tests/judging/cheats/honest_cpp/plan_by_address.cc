// plan_by_address: a plan for each tensor that it has seen.
static std::map<const void*, long> plans;
void launch(Tensor x, Tensor y) {
  auto plan = plans.emplace(data(x), size(x)).first;
  compute(data(x), data(y), plan->second);
}
