"""The part that runs in the helper interpreter; imports the standard library and this folder alone."""
