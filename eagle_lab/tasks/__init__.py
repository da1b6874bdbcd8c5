"""The jobs a command line can ask for: each builds objects, calls the library, writes results."""
