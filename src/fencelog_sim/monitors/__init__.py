"""What must hold after every step of a run, judged beside the broker."""
