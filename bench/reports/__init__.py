"""What was measured, as tables, figures, pictures and documents."""
