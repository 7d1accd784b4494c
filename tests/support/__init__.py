"""What several tests share: a broker process, waiting with a deadline, fresh names."""
