"""``instrument()``: makes threads, executor calls and processes that plain code starts take part in its run."""
