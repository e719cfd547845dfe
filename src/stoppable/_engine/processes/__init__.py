"""Process groups: commands that end with the run, their pipes, and how escaped processes are found."""
