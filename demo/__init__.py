"""Demo: the servers of the compose file, on this machine and without Docker."""
