"""Workers of ktuned on the nodes of a Ray cluster. Imported by the bridge and on the nodes, never by the daemon."""
