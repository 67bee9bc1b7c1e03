"""The experiments by number, each with its size in full and its size in `make test`, and what it has to show."""
