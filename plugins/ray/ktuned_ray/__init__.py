"""ktuned's workers on the nodes of a Ray cluster."""
