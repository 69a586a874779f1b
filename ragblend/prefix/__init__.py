"""The prefix cache: KV of prompts' beginnings, reused as it stands by later prompts that begin alike."""
