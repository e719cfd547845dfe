"""The agents of a server in the words of other protocols: in each of them a cancel is a stop."""
