"""One module a command: `main(argv) -> exit status`. Each says its flags in its own parser."""
