"""Prompts and chats, and the store of captured features."""
