"""Tools of the developers; nothing of fencelog imports them."""
