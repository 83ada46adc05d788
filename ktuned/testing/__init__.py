"""The public test kit: what third parties check their plugins with."""
