"""A program for workspaces: it prints the names in its folder."""

import json
from pathlib import Path

print(json.dumps(sorted(path.name for path in Path(__file__).parent.iterdir())))
