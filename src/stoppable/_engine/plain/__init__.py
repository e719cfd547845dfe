"""Plain code takes part: the threads, executor calls and processes that a run's code starts without our functions."""
