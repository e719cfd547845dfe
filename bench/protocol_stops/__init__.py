"""The official clients of the protocols that `stoppable serve` speaks, and plain servers of their SDKs."""
