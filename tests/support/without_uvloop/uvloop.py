"""Stands in for uvloop where a broker process shall run on asyncio's own loop."""

raise ImportError("this process runs without uvloop")
