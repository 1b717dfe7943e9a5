"""What a model needs of a device, from figures alone: no weights are read."""
