"""What the stores in a database share: the Store protocol, its queues, common statements, the locks of workers."""
