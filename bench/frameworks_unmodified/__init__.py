"""One ordinary agent for each framework, none of which knows stoppable."""
