"""stoppable inside agent frameworks: one module or package for each."""
