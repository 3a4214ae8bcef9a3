"""What people get wrong about inference servers, and a request's way through one, in numbers of the model."""
