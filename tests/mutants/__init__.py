"""Breaks each invariant by one line and demands that a named test notices."""
