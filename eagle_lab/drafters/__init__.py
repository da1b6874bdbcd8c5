"""The draft networks, their building blocks, and the folder they are saved in."""
