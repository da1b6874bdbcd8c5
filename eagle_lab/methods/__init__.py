"""One file per way to draft, and how the methods of a bench are built."""
