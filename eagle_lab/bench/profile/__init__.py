"""What passes cost on this machine, and what that predicts."""
