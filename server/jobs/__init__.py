"""Jobs: the queue, workers and their child processes, files and uploads."""
