"""Pictures of figures by matplotlib: for a page, whose colours follow its theme, and for papers."""

from pkb_gym.report.figures.charts import Chart, charts
from pkb_gym.report.figures.files import write_pictures
from pkb_gym.report.figures.svg import page_svg

__all__ = ["Chart", "charts", "page_svg", "write_pictures"]
