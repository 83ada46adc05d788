"""Public test kit: the conformance suite for plugins."""
