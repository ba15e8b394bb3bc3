"""The report: a study's JSON becomes one self-contained HTML file that works offline."""

from whence.report.page import from_path, render, write_report

__all__ = ["from_path", "render", "write_report"]
