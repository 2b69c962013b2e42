"""Figures -> pages, tables and pictures, and the leaderboard."""
