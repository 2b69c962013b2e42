"""Workspaces: a folder and a budget for a program that edits, evaluates and submits by itself."""
