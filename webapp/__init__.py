"""Three web apps that call the same batch tasks: Flask, FastAPI and Django."""
