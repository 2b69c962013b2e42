"""The problems: one folder each, found by the catalogue. Imports the engine only."""
