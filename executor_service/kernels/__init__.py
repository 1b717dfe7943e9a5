"""Tensors in, tensors out: the operations a model is made of, once per kind of device.

`reference` says in plain torch what each operation means; a `Backend` is one device's way to do
it. Nothing here knows of plans, models or files: only torch (and triton) may be imported.
"""
