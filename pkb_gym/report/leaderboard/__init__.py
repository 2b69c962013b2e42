"""The leaderboard: entries as versioned JSON, and the table that is made of them."""

from pkb_gym.report.leaderboard.build import make_entry
from pkb_gym.report.leaderboard.entry import LeaderboardEntry, json_schema, read_entries, read_entry
from pkb_gym.report.leaderboard.table import leaderboard_markdown

__all__ = ["LeaderboardEntry", "json_schema", "leaderboard_markdown", "make_entry", "read_entries", "read_entry"]
