"""What people get wrong about LLM inference, in numbers."""
