"""Every text for a model, as templates with typed variables."""
