"""What two models, or two nights, say together."""
