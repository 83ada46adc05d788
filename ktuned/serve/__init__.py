"""The daemon's face: the socket, the methods behind it, and the events it publishes."""
