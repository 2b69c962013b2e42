"""The dry run of a training command: what would stop it, found before a GPU is taken."""
