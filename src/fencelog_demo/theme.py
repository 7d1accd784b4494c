"""The colours that chart and report share."""

COLORS = {
    "paper": "#fbfaf7",
    "ink": "#1f2933",
    "quiet": "#66727f",
    "line": "#c9cfd6",
    "grid": "#e7e5df",
    "exact": "#0f766e",
    "plain": "#c2570c",
    "driver": "#3f6ea8",
    "sent": "#94a3b8",
    "broker": "#475569",
    "kill": "#b91c1c",
}
