"""EAGLE-1 (arXiv 2401.15077): one decoder layer over features and next tokens."""
