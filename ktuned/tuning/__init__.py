"""How a kernel is tuned: jobs and their order, the channels a config goes through, deadlines."""
