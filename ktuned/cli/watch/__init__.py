"""``ktuned watch`` on a terminal: the board, its picture, the keys."""
