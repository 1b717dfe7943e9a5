"""The container fleet, driven from the host as a user would: `python -m tests.compose`."""
