"""Figures that need no model and no server, computed with the scheduler's own parts."""
