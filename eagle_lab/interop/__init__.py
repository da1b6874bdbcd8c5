"""Other engines beside ours: Hugging Face generate and llama.cpp as peers of the same bench."""
