"""Process groups: commands that die with the run, the pipes to them, and the table that finds what escaped."""
