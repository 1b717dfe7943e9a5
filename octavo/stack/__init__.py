"""A whole Octavo on one machine: executors and a scheduler as child processes, watched over."""
