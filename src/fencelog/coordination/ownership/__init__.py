"""Single readers and writers: claims, their epochs and their leases (rules O1 to O11)."""
