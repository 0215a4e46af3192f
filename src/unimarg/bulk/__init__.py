"""Tables of any size, scored part by part."""
