"""``ktuned watch`` on a terminal: the board, how it is drawn, and the keys."""
