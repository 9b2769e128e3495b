"""What boxes leave open, as tests that native code runs on the candidates."""
