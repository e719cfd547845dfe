"""What the stores in a database share: rows, requests, batches, the calls of the protocol, the locks of workers."""
