"""The server side, which needs pkb-gym."""
