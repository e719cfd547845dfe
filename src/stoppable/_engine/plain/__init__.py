"""``instrument()``: threads, executor calls and processes that a run's code starts without stoppable take part."""
