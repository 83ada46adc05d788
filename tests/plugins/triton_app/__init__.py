"""An application's package, whose kernels are tuned from outside."""
