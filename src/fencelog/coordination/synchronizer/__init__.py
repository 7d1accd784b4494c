"""State that several writers share through a log of its updates (R4): encoding, replay, answers."""
