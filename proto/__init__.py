"""The wire. A regular package on purpose: without this file PyPI's proto-plus shadows it.

Generated modules live beside their .proto files and are never edited; `make proto` rewrites them.
"""
