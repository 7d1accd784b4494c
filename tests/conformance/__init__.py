"""Real clients against a real broker process. None of these may ever be skipped."""
