"""What clients do in a run, the same in the simulator and against real processes."""
