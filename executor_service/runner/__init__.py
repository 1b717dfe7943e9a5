"""Executes step plans: checks them, builds the batch, runs the model, samples."""
