"""Programs whose sizes vary: which sizes of the arguments do, and one program for all of them."""
